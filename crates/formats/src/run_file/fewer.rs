//! A run with fewer packets, for files that shall be small.

use super::RunFile;
use super::follow::Followed;
use super::packets::{places, renumbered, squeezed};
use super::sample::{Windows, depth};
use super::table::Table;

impl RunFile {
    /// The same with at most so many packets, chosen as they were when it was recorded; all that is known of the others goes with
    /// them. One connection stays whole. Runs beside it are left out.
    #[must_use]
    pub fn with_fewer_packets(&self, most: usize) -> Self {
        let mut run = Self { meta: self.meta.clone(), tables: self.tables.clone(), others: Vec::new() };
        let Some(packets) = self.table("packets").filter(|packets| packets.rows > most) else { return run };
        let kept = &self.meta["kept"];
        let has_all = kept["packets"] == kept["packets_sent"];
        let followed =
            if has_all { Followed::of(packets) } else { Followed::read(&kept["followed"], packets) };
        let followed = followed.map(|one| one.shorter(packets, most));
        let rows = Windows::new(most).choose(packets, followed, |row| depth(packets, row));
        let places = places(&rows, packets.rows);
        let mut heap = None;
        for table in &mut run.tables {
            match table.name.as_str() {
                "packets" => *table = packets.take(&rows),
                "hops" => *table = renumbered(table, 1, &places),
                "frames" => {
                    *table = renumbered(table, 0, &places);
                    let bytes = self.table("heap").map_or(&[][..], |heap| heap.bytes(0));
                    heap = Some(squeezed(table, bytes));
                }
                _ => {}
            }
            run.meta["tables"][&table.name] = table.rows.into();
        }
        if let (Some(bytes), Some(table)) = (heap, run.tables.iter_mut().find(|table| table.name == "heap")) {
            *table = Table::of_bytes("heap", bytes);
            run.meta["tables"]["heap"] = table.rows.into();
        }
        run.meta["kept"]["packets"] = rows.len().into();
        run.meta["kept"]["followed"] = followed.map_or(serde_json::Value::Null, |one| one.meta());
        run
    }
}

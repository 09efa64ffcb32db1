//! Catalogues of the user's: servers and models that a scenario names besides those that ship.

use railnet_job::file::ModelSection;
use railnet_job::model::catalogue::Models;
use railnet_topology::catalogue::Catalogue;

use super::cluster::is_file;
use super::{Files, Scenario, ScenarioError, SourceFile, unreadable};

impl Scenario {
    /// Reads the catalogues that it names, and puts what they have in the place of names.
    pub(super) fn read_catalogues(&mut self, files: &mut impl Files) -> Result<(), ScenarioError> {
        let mut servers = Catalogue::built_in().clone();
        let mut models = Models::built_in().clone();
        for (index, path) in self.catalogue.iter().enumerate() {
            let text = files.text(path);
            let text = text.map_err(|why| unreadable(path, &why).at(&format!("catalogue.{index}")))?;
            let file = SourceFile { path: path.clone(), text: text.into() };
            let wrong = |message: String, span: Option<std::ops::Range<usize>>, meant: Option<String>| {
                ScenarioError { meant, ..file.wrong(span.unwrap_or(0..0), message) }
            };
            servers.extend(&file.text).map_err(|error| wrong(error.message, error.span, error.meant))?;
            models.extend(&file.text).map_err(|error| wrong(error.message, error.span, None))?;
        }
        if !self.catalogue.is_empty() {
            self.put_servers(&servers);
            let job = self.job.iter_mut().map(|section| &mut section.model);
            for section in self.model.iter_mut().chain(job) {
                put_model(section, &models);
            }
        }
        Ok(())
    }

    fn put_servers(&mut self, servers: &Catalogue) {
        let Some(cluster) = &mut self.cluster else { return };
        let built_in = Catalogue::built_in();
        let is_own = |name: &&str| built_in.hosts().all(|(known, _)| known != *name);
        cluster.known = servers.hosts().map(|(name, _)| name).filter(is_own).map(str::to_owned).collect();
        for (_, name, place) in cluster.named() {
            *place = servers.host(&name);
        }
    }

    /// Reads the topology files of NCCL's that `[cluster]` names.
    pub(super) fn read_servers(&mut self, files: &mut impl Files) -> Result<(), ScenarioError> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        for (key, name, place) in cluster.named().into_iter().filter(|(_, name, _)| is_file(name)) {
            *place = Some(files.server(&name).map_err(|reason| unreadable(&name, &reason).at(&key))?);
        }
        // What the files have is known only now.
        cluster.check().map_err(|error| error.within("cluster"))
    }
}

fn put_model(section: &mut ModelSection, models: &Models) {
    section.known = section.name.as_deref().and_then(|name| models.model(name)).map(Box::new);
    section.names = models.models().map(|(name, _)| name.to_owned()).collect();
}

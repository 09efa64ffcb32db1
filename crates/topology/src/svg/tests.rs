//! Pictures are well-formed and say what they show.

use railnet_core::{Rate, Span};

use super::*;
use crate::fabric::{
    Dragonfly, Explicit, ExplicitLink, FabricKind, FatTree, LeafSpine, LinkSpec, RailOptimised, SingleSwitch,
};

fn picture(kind: &FabricKind) -> String {
    let graph = kind.build(&LinkSpec::new(Rate::gbps(400), Span::from_ns(500))).unwrap();
    let text = draw(&graph);
    well_formed(&text).unwrap();
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    text
}

/// Enough of XML for what is written here: tags nest and close, attributes are quoted and appear once, `&` and `<`
/// are escaped.
fn well_formed(text: &str) -> Result<(), String> {
    let mut open: Vec<String> = Vec::new();
    let mut rest = text;
    let mut roots = 0;
    while let Some(start) = rest.find('<') {
        entities(&rest[..start])?;
        let end = rest[start..].find('>').ok_or("a tag without an end")? + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("</{name}> closes something else"));
            }
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        attributes_are_sound(attributes)?;
        roots += usize::from(open.is_empty());
        if !empty {
            open.push(name.to_owned());
        }
    }
    if !open.is_empty() || roots != 1 || !rest.trim().is_empty() {
        return Err(format!("left open: {open:?}, roots: {roots}, after the end: {rest:?}"));
    }
    Ok(())
}

fn attributes_are_sound(text: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").ok_or_else(|| format!("no value in {rest:?}"))?;
        let (value, after) = value.split_once('"').ok_or_else(|| format!("no end of {name}"))?;
        if seen.contains(&name) || name.contains(char::is_whitespace) {
            return Err(format!("attribute {name:?}"));
        }
        entities(value)?;
        seen.push(name);
        rest = after.trim_start();
    }
    Ok(())
}

fn entities(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('&') {
        let name = text[at + 1..].split_once(';').map(|(name, _)| name);
        if !matches!(name, Some("amp" | "lt" | "gt" | "quot" | "#39")) {
            return Err(format!("a bare & in {text:?}"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_finds_what_is_wrong() {
    assert_eq!(well_formed("<a b=\"1\"><c/>x &amp; y</a>"), Ok(()));
    for wrong in ["<a>", "<a></b>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>", "<a>&</a>", "<a/><b/>", "<a", "<a/>x"]
    {
        assert!(well_formed(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn small_fabrics_show_every_name() {
    let text = picture(&FabricKind::SingleSwitch(SingleSwitch { hosts: 17 }));
    for name in ["switch0", "host0", "host16", "17 hosts, 1 switch, 17 links", "17 links of 400 Gbps, 500 ns"]
    {
        assert!(text.contains(name), "{name}");
    }
    let text = picture(&FabricKind::LeafSpine(LeafSpine { links_per_spine: 2, ..LeafSpine::new(4, 8, 2) }));
    for name in ["leaf3", "spine1", "host31", "×2"] {
        assert!(text.contains(name), "{name}");
    }
    let text = picture(&FabricKind::RailOptimised(RailOptimised::new(4, 8, 4)));
    for name in ["leaf0.7", ">nic7<", ">node3<"] {
        assert!(text.contains(name), "{name}");
    }
}

#[test]
fn large_fabrics_stay_small_pictures() {
    let text = picture(&FabricKind::FatTree(FatTree::new(8)));
    assert!(text.contains(">4 hosts<") && text.contains("pod 7"));
    let text = picture(&FabricKind::FatTree(FatTree::new(16)));
    for name in [">64 hosts<", ">8 edge<", ">8 agg<", ">8 core<", "pod 15"] {
        assert!(text.contains(name), "{name}");
    }
    assert!(text.len() < 120_000, "{}", text.len());
    let text = picture(&FabricKind::FatTree(FatTree::new(48)));
    assert!(text.len() < 200_000 && text.contains("pods 0–1"), "{}", text.len());
    let text = picture(&FabricKind::LeafSpine(LeafSpine::new(100, 40, 64)));
    assert!(text.len() < 200_000, "{}", text.len());
    let text = picture(&FabricKind::RailOptimised(RailOptimised {
        nodes_per_group: 32,
        ..RailOptimised::new(128, 8, 16)
    }));
    assert!(text.contains("group 3"));
}

#[test]
fn dragonflies_are_circles_of_groups() {
    let shape = |groups, routers_per_group, hosts_per_router, global_links_per_router| {
        FabricKind::Dragonfly(Dragonfly {
            groups,
            routers_per_group,
            hosts_per_router,
            global_links_per_router,
        })
    };
    let text = picture(&shape(9, 4, 2, 2));
    for name in ["group 8", "8 hosts", "router8.3", "between groups: 36 links", "inside groups: 54 links"] {
        assert!(text.contains(name), "{name}");
    }
    let text = picture(&shape(33, 8, 4, 4));
    assert!(text.contains("8 routers") && text.contains("32 hosts"));
    let text = picture(&shape(100, 10, 2, 10));
    assert!(text.contains("groups 0–2"));
}

#[test]
fn names_cannot_break_the_picture() {
    let list = Explicit {
        hosts: Vec::new(),
        switches: vec!["<s> & \"t\"".into(), "b\u{1}'".into()],
        links: ["a<b - <s> & \"t\"", "c - b\u{1}'", "<s> & \"t\" - b\u{1}'"].map(ExplicitLink::new).to_vec(),
    };
    let text = picture(&FabricKind::Explicit(list));
    assert!(text.contains("&lt;s&gt; &amp; &quot;t&quot;"));
}

#[test]
fn even_nothing_has_a_picture() {
    assert_eq!(well_formed(&draw(&FabricGraph::default())), Ok(()));
}

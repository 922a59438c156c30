//! Every real config plans without an assumption.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;

use support::{collected, names};

/// One snapshot per model type: layers, kinds, bytes, facts and passes of each of its models.
#[test]
fn each_family_has_the_layers_and_bytes_of_its_snapshot() {
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    for name in names("configs") {
        let (mut model, collected) = collected(&format!("configs/{name}"));
        model.source = name;
        let text = families.entry(model.info.model_type.clone()).or_default();
        writeln!(text, "{}", model.inspection(&collected)).unwrap();
    }
    for (family, text) in families {
        assert!(text.lines().all(|line| line.chars().count() <= 100));
        insta::with_settings!({ prepend_module_to_snapshot => false }, { insta::assert_snapshot!(family, text) });
    }
}

#[test]
fn every_tiny_model_reads() {
    for name in names("models") {
        let (model, collected) = collected(&format!("models/{name}"));
        assert!(!collected.resources.is_empty(), "{name}");
        let of_type = model.info.model_type.replace("gemma3_text", "gemma3").replace("gemma4_text", "gemma4");
        // The second of its type.
        assert_eq!(of_type, name.replace("gemma4_moe", "gemma4"));
    }
}

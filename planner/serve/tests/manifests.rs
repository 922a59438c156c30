//! Manifests in the forms that projects publish, what is read of each, and what is said of those that are not.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use cacheplan_serve::manifest;
use rstest::rstest;

/// What is read of a manifest, or why it is not.
fn dump(name: &str, bytes: &[u8]) -> String {
    let launches = match manifest::read(name, bytes) {
        Ok(launches) => launches,
        Err(error) => return format!("refused: {error}\n"),
    };
    let mut out = String::new();
    for launch in launches {
        writeln!(out, "{}\n  {launch}", launch.place).unwrap();
        for (key, value) in &launch.config {
            writeln!(out, "  {key}: {value}").unwrap();
        }
        let gpus = launch.gpus.map_or("-".to_owned(), |gpus| gpus.to_string());
        writeln!(out, "  gpus {gpus}, device {}", launch.device.as_deref().unwrap_or("-")).unwrap();
    }
    out
}

/// The file of this name is read, or refused, as its snapshot says.
fn check(name: &str, expected: &str) {
    let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests").join(name)).unwrap();
    let found = dump(name, &bytes);
    assert_eq!(found.starts_with("refused"), expected == "refused", "{found}");
    assert!(!found.contains("sesame") && !found.contains("hf_0123"), "{found}");
    insta::with_settings!({ snapshot_path => "manifests/snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, found);
    });
}

#[rstest]
#[case("bad_args.yaml", "refused")]
#[case("bad_branch.sh", "refused")]
#[case("bad_compose_anchor.yaml", "refused")]
#[case("bad_compose_unset.yaml", "refused")]
#[case("bad_condition.sh", "refused")]
#[case("bad_condition_array.sh", "refused")]
#[case("bad_config_template.yaml", "refused")]
#[case("bad_document.sh", "refused")]
#[case("bad_duplicate.yaml", "refused")]
#[case("bad_gpus.yaml", "refused")]
#[case("bad_kserve_backend.yaml", "refused")]
#[case("bad_llm_base.yaml", "refused")]
#[case("bad_nested_quote.yaml", "refused")]
#[case("bad_no_shell.yaml", "refused")]
#[case("bad_nothing.yaml", "refused")]
#[case("bad_pattern.sh", "refused")]
#[case("bad_quote.sh", "refused")]
#[case("bad_ray_file.yaml", "refused")]
#[case("bad_secret_flag.yaml", "refused")]
#[case("bad_substitution.sh", "refused")]
#[case("bad_tag.yaml", "refused")]
#[case("bad_template.yaml", "refused")]
#[case("bad_template_flag.yaml", "refused")]
#[case("bad_template_value.yaml", "refused")]
#[case("bad_unset.sh", "refused")]
#[case("compose.yaml", "read")]
#[case("deployment.yaml", "read")]
#[case("docker_run.sh", "read")]
#[case("dynamo.yaml", "read")]
#[case("kserve.yaml", "read")]
#[case("list.json", "read")]
#[case("llm_d.yaml", "read")]
#[case("llm_inference_service.yaml", "read")]
#[case("lws.yaml", "read")]
#[case("placeholder.sh", "read")]
#[case("production_stack.yaml", "read")]
#[case("prompt.txt", "read")]
#[case("ray.yaml", "read")]
#[case("ray_service.yaml", "read")]
#[case("sglang.sh", "read")]
#[case("sglang_config.yaml", "read")]
#[case("trtllm_appended.sh", "read")]
#[case("trtllm_config.yaml", "read")]
#[case("trtllm_heredoc.sh", "read")]
#[case("vllm.sh", "read")]
#[case("vllm_config.yaml", "read")]
fn a_manifest_is_read_as_its_platform_reads_it(#[case] name: &str, #[case] expected: &str) {
    check(name, expected);
}

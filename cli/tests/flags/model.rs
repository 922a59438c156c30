//! What is said of a model beside its files: weights, dtypes, drafts, lengths.

use std::path::Path;

use serde_json::Value;

use super::{GEMMA, NANO, cacheplan, config, plan, stdout};

/// A model that nobody knows is fitted by its description, which the printed command repeats.
#[test]
fn a_described_model_is_fitted_and_what_is_misspelt_is_shown_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let heron = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/heron");
    let text = std::fs::read_to_string(heron.join("heron.toml")).unwrap();
    let model = heron.join("config.json");
    let fit = |text: &str| {
        std::fs::write(folder.path().join("heron.toml"), text).unwrap();
        let asked = ["--as", "plan", "--context", "4k", "--sequences", "8", "--gpus", "l4"];
        let size = [&asked[..], &["--description", "FILE:heron.toml"]].concat();
        cacheplan(&["fit", model.to_str().unwrap()], None, &size, folder.path())
    };
    let table = stdout(&fit(&text)).replace("\\\n   ", "");
    let file = folder.path().join("heron.toml").display().to_string();
    assert!(table.contains(&format!("--description {file} --device-memory l4")), "{table}");
    let refused = fit(&text.replace("glance_tokens", "glance_tokns"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("(near: glance_tokens"), "{said}");
    let refused = fit(&text.replace("d_state", "d_stat"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(&format!("{file}: architecture description of `heron`, line 16")), "{said}");
    assert!(said.contains(&format!("╭─[{file}:16:1]")), "{said}");
}

#[test]
fn a_name_that_tells_of_a_quantisation_which_the_config_does_not_state_is_doubted() {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read(config("Qwen__Qwen3-8B.json")).unwrap();
    std::fs::create_dir(folder.path().join("Qwen3-8B-FP8")).unwrap();
    for (file, doubted) in [("Qwen3-8B-FP8/config.json", true), ("Qwen3-8B_nvfp4.json", true), ("Qwen3-8B.json", false)]
    {
        std::fs::write(folder.path().join(file), &config).unwrap();
        let planned = cacheplan(&["plan"], None, &[&format!("FILE:{file}")], folder.path());
        let notes = String::from_utf8_lossy(&planned.stderr).into_owned();
        assert_eq!(notes.contains("states no quantization_config"), doubted, "{file}: {notes}");
    }
}

/// The config states float32; whoever states another dtype means it.
#[test]
fn a_stated_dtype_of_states_holds_whatever_the_config_says() {
    let state = |flags: &[&str]| {
        let plan = plan(NANO, flags);
        let resources = plan["resources"].as_array().unwrap().clone();
        resources.into_iter().find(|resource| resource["kind"] == "ssm").unwrap()["dtype"].clone()
    };
    assert_eq!(state(&[]), "f32");
    assert_eq!(state(&["--ssm-dtype", "bf16"]), "bf16");
}

/// The layers of a real model tell what a step takes, and a plan that keeps more free admits less and proves right.
#[test]
fn a_plan_can_be_safe_of_what_is_assumed() {
    let folder = tempfile::tempdir().unwrap();
    let model = "Qwen__Qwen3-8B.json";
    let flags = ["--device-memory", "h100", "--max-seq-len", "8192"];
    let (plain, safe) = (plan(model, &flags), plan(model, &[&flags[..], &["--safe"]].concat()));
    let sequences = |plan: &Value| plan["capacity"]["sequences"].as_u64().unwrap();
    assert!(sequences(&safe) < sequences(&plain));
    let names = |plan: &Value| -> Vec<String> {
        plan["ledger"].as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names(&plain).contains(&"graphs".to_owned()) && names(&safe).contains(&"margin".to_owned()));
    let out = [&flags[..], &["--safe", "--out", "FILE:plan.json"]].concat();
    stdout(&cacheplan(&["plan"], Some(model), &out, folder.path()));
    let model = config(model);
    let proof = ["FILE:plan.json", "--model", model.to_str().unwrap(), "--safe"];
    let checked = stdout(&cacheplan(&["plan", "check"], None, &[&proof[..], &flags].concat(), folder.path()));
    assert!(checked.contains("are proved"), "{checked}");
}

#[test]
fn weights_of_unknown_size_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some(GEMMA), &["--device-memory", "24GiB"], folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("`moe_intermediate_size` is missing"), "{message}");
    assert!(message.contains("state `memory.weights` (--weights)"), "{message}");
}

#[test]
fn the_weights_of_a_draft_model_are_counted_and_divided_over_ranks() {
    let draft = config(NANO);
    let planned = |ranks: &[&str]| {
        let flags = ["--memory-bytes", "4GiB", "--draft-tokens", "2", "--draft", draft.to_str().unwrap()];
        plan(NANO, &[&flags[..], ranks].concat())
    };
    let lines = |plan: &Value| {
        let ledger = plan["ledger"].as_array().unwrap().clone();
        let bytes = |name: &str| ledger.iter().find(|line| line["name"] == name).unwrap()["bytes"].as_u64().unwrap();
        (bytes("weights"), bytes("draft weights"))
    };
    let (alone, ranks) = (planned(&[]), planned(&["--tp", "2", "--pp", "2"]));
    let (whole, share) = (lines(&alone), lines(&ranks));
    assert_eq!((whole.0, share.0), (whole.1, share.1));
    // Norms and routers are whole on both ranks of a stage, embeddings lie on one stage, everything else is divided over all four.
    let classes = ranks["deployment"]["weights"].as_array().unwrap();
    let bytes = |class: &Value| class["bytes"].as_u64().unwrap();
    let of_rank = classes.iter().map(|class| {
        let ranks = if ["replicated", "embeddings"].iter().any(|name| class["class"] == *name) { 2 } else { 4 };
        bytes(class).div_ceil(ranks)
    });
    assert_eq!(share.1, of_rank.sum::<u64>());
    // The head, as large as the embeddings, is on the last stage.
    let head = classes.iter().filter(|class| class["class"] == "embeddings").map(bytes);
    assert_eq!(whole.1, classes.iter().map(bytes).sum::<u64>() + head.sum::<u64>());
}

#[test]
fn the_weights_of_a_draft_model_that_does_not_tell_are_asked_for() {
    let draft = config(GEMMA);
    let flags = ["--device-memory", "141GiB", "--draft-tokens", "2", "--draft", draft.to_str().unwrap()];
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some(NANO), &flags, folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && message.contains("(--draft-weights)"), "{message}");
    let planned = plan(NANO, &[&flags[..], &["--draft-weights", "2GB"]].concat());
    let ledger = planned["ledger"].as_array().unwrap();
    assert!(ledger.iter().any(|line| line["name"] == "draft weights" && line["bytes"] == 2_000_000_000));
}

#[test]
fn sequences_longer_than_the_model_or_the_limit_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let planned = cacheplan(&["plan"], Some(NANO), &["--max-seq-len", "4294967296"], folder.path());
    let notes = String::from_utf8_lossy(&planned.stderr).into_owned();
    assert!(planned.status.success() && notes.contains("is longer than the 262144 tokens"), "{notes}");
    let planned = cacheplan(&["plan"], Some(NANO), &["--prompt", "8000"], folder.path());
    let notes = String::from_utf8_lossy(&planned.stderr).into_owned();
    assert!(notes.contains("note: 100 % of the workload's sequences are longer than max_seq_len 4096"), "{notes}");
}

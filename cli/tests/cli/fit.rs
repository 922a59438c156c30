//! `fit` finds devices, and its rows are what `plan` says of them.

use rstest::rstest;
use serde_json::Value;

use super::{cacheplan, config, stderr};

#[test]
fn what_fits_is_told_with_its_flags_and_what_does_not_ends_with_3() {
    let fit = |more: &[&str]| {
        let args =
            ["fit", config("deepseek-ai__DeepSeek-V3.json").to_str().unwrap(), "--as", "plan", "--context", "32k"]
                .map(str::to_owned)
                .into_iter()
                .chain(more.iter().map(|&arg| arg.to_owned()));
        cacheplan(&args.collect::<Vec<_>>())
    };
    let output = fit(&["--sequences", "100", "--gpus", "h200", "--max-gpus", "8"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    // Seven stages are fewer devices than eight replicas of 13 each, which the planner's own test derives by hand.
    assert!(text.contains("7 x h200") && text.contains("--pp 7"), "{text}");
    let eight = fit(&["--sequences", "104", "--gpus", "h200", "--max-gpus", "8", "--format", "csv"]);
    let eight = String::from_utf8_lossy(&eight.stdout).into_owned();
    assert!(eight.lines().any(|row| row.starts_with("h200,8,1,1,8,8,,,,true,104,")), "{eight}");
    assert_eq!(fit(&["--sequences", "100", "--gpus", "l4", "--max-gpus", "1"]).status.code(), Some(3));
}

/// Four ways to ask for the longest, each with an answer that a plan of that length holds.
#[test]
fn the_longest_sequences_that_fit_are_found_by_plan_and_fit() {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let plan = |length: &str| {
        let args = ["plan", &model, "--device-memory", "rtx-4090", "--max-batch-size", "2", "--max-seq-len", length];
        cacheplan(&[&args[..], &["--format", "json"]].concat())
    };
    let found = plan("auto");
    assert!(found.status.success() && stderr(&found).contains("is the longest that fits"), "{}", stderr(&found));
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let longest = found["limits"]["max_seq_len"].as_u64().unwrap();
    let held = |length: u64| -> Value {
        serde_json::from_slice::<Value>(&plan(&length.to_string()).stdout).unwrap()["capacity"]["sequences"].clone()
    };
    assert_eq!((held(longest), held(longest + 1)), (2.into(), 1.into()));
    let fit = ["fit", &model, "--context", "auto", "--sequences", "2", "--gpus", "rtx-4090", "--max-gpus", "1"];
    let fit = cacheplan(&[&fit[..], &["--format", "json"]].concat());
    let fit: Value = serde_json::from_slice(&fit.stdout).unwrap();
    assert!(fit["fits"][0]["holds"] == true && fit["context"].as_u64() > Some(4096), "{fit}");
    for refused in [&["config", "show", "--max-seq-len", "auto"][..], &["plan", &model, "--max-seq-len", "auto"]] {
        let output = cacheplan(refused);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
    }
}

/// The longest beside what is left free is no longest of a command that states its cells, which both doors say, and which starts.
#[test]
fn the_longest_says_what_it_leaves_free_and_what_stated_cells_hold() {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let device = ["--device", "rtx-4090", "--reserve", "1.5GiB"];
    let fit = ["fit", &model, "--context", "auto", "--sequences", "1", "--max-gpus", "1", "--as", "llama.cpp"];
    let plan = ["plan", &model, "--max-batch-size", "1", "--max-seq-len", "auto", "--as", "llama.cpp"];
    let [fit, plan] = [&fit[..], &plan[..]].map(|asked| stderr(&cacheplan(&[asked, &device].concat())));
    assert!(fit.contains("leaves free what --fit-target says"), "{fit}");
    assert!(plan.contains(" of the device (--memory-fraction)") && plan.contains("--fit-target"), "{plan}");
    let stated = |said: &str| -> u64 {
        let cells = said.split_once("-ngl 99 -c ").unwrap_or_else(|| panic!("{said}")).1;
        cells.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    assert_eq!(stated(&fit), stated(&plan));
    let starts = |cells: u64| {
        let cells = cells.to_string();
        let asked =
            ["--model-config", &model, "--", "llama-server", "-m", "m.gguf", "-np", "1", "-ngl", "99", "-c", &cells];
        let output = cacheplan(&[&["plan", "--strict"], &device[..], &asked].concat());
        output.status.success()
    };
    let cells = stated(&fit);
    assert!(starts(cells) && (cells == 40_960 || !starts(cells + 256)), "{cells}");
}

#[test]
fn prices_are_stated_one_by_one_above_those_of_a_file() {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let fit = |more: &[&str]| {
        let asked = ["fit", &model, "--context", "8k", "--sequences", "4", "--gpus", "h100,l40s,l4"];
        cacheplan(&[&asked[..], more].concat())
    };
    let output = fit(&["--price", "h100=2.49,l40s=0.86"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 x l40s, the cheapest that holds") && text.contains("0.86 an hour"), "{text}");
    assert!(text.contains("without a price: "), "{text}");
    // Prices of more than is asked about are those of another question.
    let output = fit(&["--price", "b200=2,l4=0.5"]);
    assert!(output.status.success() && stderr(&output).contains("b200 is not tried"), "{}", stderr(&output));
    for (wrong, said) in [
        ("h100", "write one such as h100=2.49"),
        ("h1000=2", "neither a size"),
        ("l4=-1", "at least 0"),
        ("l4=.50", "a shell reads `$2` itself"),
        ("l4=$1,h100=€2", "state one currency"),
        ("h100=2,50", "`50` is no price; write one such as h100=2.49, with a point before the cents"),
    ] {
        let output = fit(&[&format!("--price={wrong}")]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

/// Each row is the plan of its layout: windows of lengths around the context, states, shared experts.
#[rstest]
fn every_row_of_fit_is_what_plan_says_of_it(
    #[values(
        "mistralai__Mistral-7B-v0.1.json",
        "meta-llama__Llama-4-Scout-17B-16E-Instruct.json",
        "Qwen__Qwen3-Next-80B-A3B-Thinking.json"
    )]
    name: &str,
    #[values("2048", "32768")] context: &str,
) {
    let model = config(name).to_str().unwrap().to_owned();
    let asked = ["--context", context, "--sequences", "1", "--gpus", "h100", "--max-gpus", "8", "--format", "json"];
    let fits = cacheplan(&[&["fit", &model, "--as", "plan"][..], &asked].concat());
    let fits: Value = serde_json::from_slice(&fits.stdout).unwrap();
    let rows = fits["fits"].as_array().unwrap().iter();
    let plain = rows.filter(|fit| ["kv_dtype", "state_dtype", "engine"].iter().all(|key| fit[*key].is_null()));
    let mut seen = 0;
    for fit in plain {
        let mut args = vec!["plan".to_owned(), model.clone(), "--device-memory".to_owned()];
        args.push(match fit["devices"].as_u64().unwrap() {
            1 => "h100".to_owned(),
            devices => format!("{devices}xh100"),
        });
        args.extend(["--max-seq-len", context, "--format", "json"].map(str::to_owned));
        for key in ["tp", "pp", "dp", "ep"] {
            args.extend([format!("--{key}"), fit["parallel"][key].to_string()]);
        }
        let output = cacheplan(&args);
        let sequences = match output.status.code() {
            Some(3) => 0,
            code => {
                assert_eq!(code, Some(0), "{}", stderr(&output));
                let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
                let all = plan["deployment"]["sequences"].as_u64();
                all.or(plan["capacity"]["sequences"].as_u64()).unwrap()
            }
        };
        assert_eq!(fit["sequences"].as_u64(), Some(sequences), "{args:?}");
        seen += 1;
    }
    assert!(seen >= 10, "{seen} rows");
}

/// The names that people have for them mean what ours do.
#[test]
fn fit_knows_its_flags_by_other_names() {
    let model = config("Qwen__Qwen3-0.6B.json");
    let fit = |flags: &[&str]| cacheplan(&[&["fit", model.to_str().unwrap()][..], flags].concat());
    let ours = fit(&["--context", "4k", "--sequences", "2", "--gpus", "l4"]);
    let others = fit(&["--ctx", "4k", "--users", "2", "--device", "l4"]);
    assert!(ours.status.success(), "{}", stderr(&ours));
    assert_eq!(ours.stdout, others.stdout);
    // A dtype that is stated is not varied, and stands in the command that is printed.
    let stated = fit(&["--context", "4k", "--sequences", "2", "--gpus", "l4", "--kv-dtype", "bf16", "--format", "csv"]);
    let stated = String::from_utf8(stated.stdout).unwrap();
    assert!(stated.lines().count() > 1 && !stated.contains("f8_e4m3"), "{stated}");
}

/// What is reserved of each device is kept by whoever answers, on devices of several usual shares.
#[rstest]
#[case("vllm", "rtx-4090")]
#[case("llama.cpp", "rtx-4090")]
#[case("plan", "m4-max-128gb,rtx-4090")]
fn what_is_reserved_is_left_free(#[case] by: &str, #[case] gpus: &str) {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let fit = |more: &[&str]| {
        let asked =
            ["fit", &model, "--context", "4k", "--sequences", "1", "--as", by, "--gpus", gpus, "--max-gpus", "1"];
        let output = cacheplan(&[&asked[..], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let most = |more: &[&str]| {
        let answer: Value = serde_json::from_str(&fit(&[more, &["--format", "json"]].concat())).unwrap();
        let rows = answer["fits"].as_array().unwrap().iter().filter(|fit| fit["device"] == "rtx-4090");
        rows.filter(|fit| fit["kv_dtype"].is_null()).filter_map(|fit| fit["sequences"].as_u64()).max().unwrap()
    };
    assert!(most(&["--reserve", "3GiB"]) < most(&[]));
    assert!(fit(&["--reserve", "3GiB"]).replace("\\\n   ", "").contains("--reserve 3221225472"), "{by}");
}

/// What is written as people write it elsewhere is understood, or refused with what says the same here.
#[rstest]
#[case(&["--gpus", "2xh200"], "--gpus h200 --max-gpus 2")]
#[case(&["--gpus", "2 x h200"], "--gpus h200 --max-gpus 2")]
#[case(&["--gpus", "h200x2"], "--gpus h200 --max-gpus 2")]
#[case(&["--gpus", "h200", "--quantization", "fp8"], "--weights fp8")]
#[case(&["--price", "h100=2.5", "h200=3.5"], "--price h100=2.5,h200=3.5")]
#[case(&["--price", "h100=2.5", "h200=$3.5"], "parted by a comma")]
fn what_is_said_otherwise_here_is_named(#[case] flags: &[&str], #[case] said: &str) {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let output = cacheplan(&[&["fit", &model, "--context", "8k", "--sequences", "4"][..], flags].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
}

#[test]
fn a_series_alone_names_its_device() {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let fit = |gpu: &str| {
        let asked = ["fit", &model, "--context", "8k", "--sequences", "1", "--format", "json", "--gpus", gpu];
        let answer: Value = serde_json::from_slice(&cacheplan(&asked).stdout).unwrap();
        answer["fits"][0]["sequences"].as_u64().unwrap()
    };
    assert_eq!(fit("4090"), fit("rtx-4090"));
}

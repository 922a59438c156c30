//! Names of strangers in files of ours.

use super::*;

#[test]
fn a_name_that_breaks_lines_is_refused() {
    let serving = Serving { model: Some("a\nkv-cache-memory-bytes: 1\rb".into()), ..Serving::default() };
    for target in Target::all() {
        let error = windowed().export(target, None, &serving).unwrap_err();
        assert!(matches!(error, ExportError::Model { .. }), "{error}");
        assert!(error.to_string().contains("a\\u000akv-cache-memory-bytes: 1\\u000db"), "{error}");
    }
}

/// A model's type loads nothing; a name that no engine takes for a model's is seen at once.
#[rstest]
fn a_model_that_is_not_stated_has_a_name_that_must_be_replaced(#[values(true, false)] stated: bool) {
    let name = if stated { "org/Hybrid-30B" } else { "<MODEL>" };
    let serving = if stated { serving() } else { Serving::default() };
    for target in Target::all().filter(|target| target.names_model()) {
        let export = hybrid().export(target, None, &serving).unwrap();
        let values = match target.name() {
            "sglang" | "vidur" | "llama.cpp" => words_of_a_shell(&export.text).join("\n"),
            _ => yaml(&export).to_string(),
        };
        assert!(values.contains(name) && !values.contains("nemotron_h"), "{target}: {values}");
        let said = export.not_expressed.iter().any(|gap| gap.contains("replace <MODEL>"));
        assert_eq!(said, !stated, "{target}: {:?}", export.not_expressed);
    }
    let vllm = hybrid().export(target("vllm"), None, &serving).unwrap();
    let usage = if stated {
        format!("# vllm serve {name} --config FILE")
    } else {
        format!("# vllm serve '{name}' --config FILE")
    };
    assert!(vllm.text.contains(&usage), "{}", vllm.text);
}

/// The values of a file of YAML, which are JSON of one library between comments.
fn json_between_comments(export: &Export) -> Value {
    let data: String = export.text.lines().filter(|line| !line.starts_with('#')).collect();
    serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {}", export.text))
}

/// Names that would break a line, end a string, be no string, or be taken for a flag, if they were not refused or quoted.
#[test]
fn hostile_names_are_refused_or_read_back_as_they_are() {
    let controls =
        (0..=0x9fu32).chain(0x200b..=0x2069).chain([0xad, 0x61c, 0x180e, 0xfeff, 0xfff9, 0xfffe, 0xffff, 0xe0001]);
    let controls = controls.filter_map(char::from_u32);
    let mut names: Vec<String> = controls.map(|c| format!("m{c}trust-remote-code: true")).collect();
    let flags = ["-m", "--trust-remote-code"];
    let quotes = ["'; rm x", "\"", "\\", "$(x)", "`x`", "a'b\"c", "!x", "a && b", "*"];
    let words =
        ["yes", "no", "on", "y", "true", "null", "~", "1e3", "1.5", "0x1f", "1_000", "12:30:45", "2024-01-01", ".inf"];
    let marks =
        ["m: x", "# m", "a #b", "- x", "? x", "*a", "&a", "[", "{}", "|", ">", "%x", "@x", "=", "<<", "模型", "🦙"];
    names.extend(flags.into_iter().chain(quotes).chain(words).chain(marks).map(String::from));
    let (mut refused, mut read) = (0, 0);
    for name in names {
        for target in Target::all().filter(|target| !["edge-llm", "aiconfigurator"].contains(&target.name())) {
            let serving = Serving { model: Some(name.clone()), ..Serving::default() };
            let export = match hybrid().export(target, None, &serving) {
                Ok(export) => export,
                Err(error) => {
                    assert!(matches!(error, ExportError::Model { .. }), "{error}");
                    refused += 1;
                    continue;
                }
            };
            assert!(!name.starts_with('-') && !name.contains(char::is_control), "{name:?}");
            read += 1;
            let script = match target.name() {
                "sglang" => Some((2, ["sglang.launch_server", "--model-path"])),
                "vidur" => Some((2, ["vidur.main", "--replica_config_model_name"])),
                "llama.cpp" => Some((0, ["llama-server", "--model"])),
                _ => None,
            };
            if let Some((from, [program, flag])) = script {
                assert_eq!(words_of_a_shell(&export.text)[from..from + 3], [program, flag, &name], "{name:?}");
                continue;
            }
            let found = yaml(&export);
            assert_eq!(found, json_between_comments(&export), "{name:?}");
            let named = match target.name() {
                "ray" => vec![&found["applications"][0]["args"]["llm_configs"][0]["model_loading_config"]["model_id"]],
                "llm-d" => vec![&found["spec"]["template"]["spec"]["containers"][0]["args"][0]],
                "llm-d-sim" => vec![&found["model"]],
                "vllm" | "tensorrt-llm" => Vec::new(),
                _ => vec![&found["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["args"][0]],
            };
            for found in named {
                let found = found.as_str().unwrap();
                let value = found.strip_prefix("--model=").or(found.strip_prefix("--model-path=")).unwrap_or(found);
                assert_eq!(value, name, "{target}");
            }
            assert!(!found.to_string().contains("\"trust-remote-code\":"), "{found}");
        }
    }
    assert!(refused > 100 && read > 200, "{refused} refused, {read} read");
}

/// What a plan says of its model goes into a comment, which ends with its line.
#[test]
fn a_model_type_ends_no_comment() {
    for separator in ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'] {
        let mut plan = hybrid();
        plan.model.model_type = format!("m{separator}trust-remote-code: true");
        let is_yaml =
            |target: &Target| !["edge-llm", "aiconfigurator", "sglang", "vidur", "llama.cpp"].contains(&target.name());
        for target in Target::all().filter(is_yaml) {
            let export = plan.export(target, None, &Serving::default()).unwrap();
            assert!(!export.text.contains(separator) || separator == '\n', "{}", export.text);
            assert!(yaml(&export).get("trust-remote-code").is_none(), "{}", export.text);
        }
    }
}

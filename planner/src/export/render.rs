//! The files that engines read.

use serde_json::{Map, Value, json};

use super::input::Input;
use super::yaml::{Entry, comment, document};
use super::{Setting, Target};

pub(super) fn render(
    target: Target,
    engine: &str,
    settings: &[Setting],
    not_expressed: &[String],
    input: &Input<'_>,
) -> String {
    let model = input.model();
    let (usage, body) = match target {
        Target::EdgeLlm => {
            return format!("{:#}\n", nested(settings));
        }
        Target::Vllm => (format!("vllm serve {} --config FILE", quoted(model)), document(&entries(settings))),
        Target::TensorRtLlm => (format!("trtllm-serve {} --config FILE", quoted(model)), document(&entries(settings))),
        Target::Sglang => ("bash FILE".into(), script(model, settings)),
        Target::Dynamo | Target::DynamoSglang | Target::DynamoTensorRtLlm => {
            ("kubectl apply -f FILE, once each container has its image".into(), dynamo(target, settings, input))
        }
        Target::LlmD => ("a kustomize patch of the Deployment `decode`".into(), llm_d(model, settings)),
        Target::Ray => ("serve deploy FILE".into(), ray(model, settings)),
    };
    let shebang = if target == Target::Sglang { "#!/usr/bin/env bash\n" } else { "" };
    let tool = &input.plan.tool_version;
    let about = format!("For {engine}, by cacheplan {tool} from a plan for {}.", input.plan.model.model_type);
    let head = comment("", &about) + &comment("", &usage);
    let tail: String = not_expressed.iter().map(|gap| comment("", &format!("- {gap}"))).collect();
    format!("{shebang}{head}{body}# What the plan says and the engine cannot be told:\n{tail}")
}

/// Settings as entries; those of a section stand together in the tables.
fn entries(settings: &[Setting]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut rest = settings;
    while let Some(setting) = rest.first() {
        let Some((section, _)) = setting.key.split_once('.') else {
            entries.push(Entry::new(&setting.key, setting.value.clone()).about(&setting.source));
            rest = &rest[1..];
            continue;
        };
        let inside = rest.iter().take_while(|next| next.key.split_once('.').is_some_and(|(other, _)| other == section));
        let children: Vec<Entry> = inside
            .map(|next| Entry::new(&next.key[section.len() + 1..], next.value.clone()).about(&next.source))
            .collect();
        rest = &rest[children.len()..];
        entries.push(Entry::map(section, children));
    }
    entries
}

/// Settings as JSON, sections as objects.
fn nested(settings: &[Setting]) -> Value {
    let mut root = Map::new();
    for setting in settings {
        let value = setting.value.clone();
        match setting.key.split_once('.') {
            Some((section, key)) => {
                let inside = root.entry(section).or_insert_with(|| json!({}));
                inside[key] = value;
            }
            None => drop(root.insert(setting.key.clone(), value)),
        }
    }
    Value::Object(root)
}

/// `--key=value`, or the bare flag where the value is `true`.
fn flag(setting: &Setting) -> String {
    match &setting.value {
        Value::Bool(true) => format!("--{}", setting.key),
        Value::String(text) => format!("--{}={text}", setting.key),
        other => format!("--{}={other}", setting.key),
    }
}

fn flags(settings: &[Setting]) -> impl Iterator<Item = Entry> {
    settings.iter().map(|setting| Entry::item(flag(setting)).about(&setting.source))
}

/// One word of a shell.
fn quoted(word: &str) -> String {
    let plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./=:".contains(c));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

fn script(model: &str, settings: &[Setting]) -> String {
    let argument = |setting: &Setting| comment("  ", &setting.source) + &format!("  {}\n", quoted(&flag(setting)));
    let lines: String = settings.iter().map(argument).collect();
    let model = quoted(model);
    format!("args=(\n{lines})\nexec python3 -m sglang.launch_server --model-path {model} \"${{args[@]}}\"\n")
}

fn dynamo(target: Target, settings: &[Setting], input: &Input<'_>) -> String {
    let (framework, module, model_flag) = match target {
        Target::DynamoSglang => ("sglang", "dynamo.sglang", "--model-path"),
        Target::DynamoTensorRtLlm => ("trtllm", "dynamo.trtllm", "--model"),
        _ => ("vllm", "dynamo.vllm", "--model"),
    };
    let mut args = vec![Entry::item(format!("{model_flag}={}", input.model()))];
    if target == Target::DynamoTensorRtLlm {
        // Its worker takes the engine's arguments as one object.
        let sources: Vec<String> =
            settings.iter().map(|setting| format!("{}: {}", setting.key, setting.source)).collect();
        args.push(Entry::item(format!("--override-engine-args={}", nested(settings))).about(sources.join("\n")));
    } else {
        args.extend(flags(settings));
    }
    let parallel = input.parallel();
    let gpus = (u64::from(parallel.tp) * u64::from(parallel.pp)).to_string();
    let component = |name: &str, kind: &str, container: Vec<Entry>| {
        let containers = Entry::list("containers", vec![Entry::map("", container)]);
        Entry::map(
            "",
            vec![
                Entry::new("name", name),
                Entry::new("type", kind),
                Entry::new("replicas", 1),
                Entry::map("podTemplate", vec![Entry::map("spec", vec![containers])]),
            ],
        )
    };
    let worker = vec![
        Entry::new("name", "main"),
        Entry::new("command", json!(["python3", "-m", module])),
        Entry::list("args", args),
        Entry::map(
            "resources",
            vec![Entry::map("limits", vec![Entry::new("nvidia.com/gpu", gpus).about("parallel.tp times parallel.pp")])],
        ),
    ];
    document(&[
        Entry::new("apiVersion", "nvidia.com/v1beta1"),
        Entry::new("kind", "DynamoGraphDeployment"),
        Entry::map("metadata", vec![Entry::new("name", "cacheplan")]),
        Entry::map(
            "spec",
            vec![
                Entry::new("backendFramework", framework),
                Entry::list(
                    "components",
                    vec![
                        component(
                            "Frontend",
                            "frontend",
                            vec![
                                Entry::new("name", "main"),
                                Entry::new("command", json!(["python3", "-m", "dynamo.frontend"])),
                            ],
                        ),
                        component("Worker", "worker", worker),
                    ],
                ),
            ],
        ),
    ])
}

fn llm_d(model: &str, settings: &[Setting]) -> String {
    let args = std::iter::once(Entry::item(model)).chain(flags(settings)).collect();
    let container = Entry::map(
        "",
        vec![
            Entry::new("name", "modelserver"),
            Entry::new("command", json!(["vllm", "serve"])),
            Entry::list("args", args),
        ],
    );
    let pod = Entry::map("spec", vec![Entry::list("containers", vec![container])]);
    document(&[
        Entry::new("apiVersion", "apps/v1"),
        Entry::new("kind", "Deployment"),
        Entry::map("metadata", vec![Entry::new("name", "decode")]),
        Entry::map("spec", vec![Entry::map("template", vec![pod])]),
    ])
}

fn ray(model: &str, settings: &[Setting]) -> String {
    let arguments = settings
        .iter()
        .map(|setting| Entry::new(setting.key.replace('-', "_"), setting.value.clone()).about(&setting.source))
        .collect();
    let config = Entry::map(
        "",
        vec![
            Entry::map("model_loading_config", vec![Entry::new("model_id", model), Entry::new("model_source", model)]),
            Entry::map("engine_kwargs", arguments),
        ],
    );
    let application = Entry::map(
        "",
        vec![
            Entry::new("name", "llms"),
            Entry::new("import_path", "ray.serve.llm:build_openai_app"),
            Entry::new("route_prefix", "/"),
            Entry::map("args", vec![Entry::list("llm_configs", vec![config])]),
        ],
    );
    document(&[Entry::list("applications", vec![application])])
}

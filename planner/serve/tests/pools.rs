//! What SGLang's own pool sizes are, without it: `tests/fixtures/oracles`, by `cargo xtask oracle sglang`.

use std::path::Path;

use cacheplan_planner::Devices;
use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Launch, Options, Starts, answer};
use cacheplan_transforms::{Model, ReadOptions};
use serde::Deserialize;
use serde_json::{Map, Value};

const LENGTH: &str = "4096";

/// What it was asked.
#[derive(Debug, Deserialize)]
struct Question {
    model: String,
    words: Vec<String>,
    gib: u64,
    /// Of the GPU, times ten.
    capability: u64,
    /// Keys that the config lacks.
    #[serde(default)]
    config: Map<String, Value>,
    /// Keys by their paths that were changed.
    #[serde(default)]
    changes: Map<String, Value>,
}

/// Tokens, those of windows and slots for states; or why it does not start.
type Pools = Result<[Option<u64>; 3], String>;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Question {
    fn model(&self) -> Result<Model, String> {
        let text = match self.model.strip_prefix("transformers:") {
            Some(class) => {
                let table = fixture("transformers/parameters.tsv");
                let mut rows = table.lines().map(|row| row.split('\t').collect::<Vec<_>>());
                rows.find(|row| row[0] == class && row[2] != "-").unwrap_or_else(|| panic!("no class {class}"))[2]
                    .into()
            }
            None => fixture(&format!("configs/{}.json", self.model)),
        };
        // Python writes infinity, which is no JSON; no cache depends on it.
        let mut config: Value = serde_json::from_str(&text.replace("Infinity", "1e300")).unwrap();
        for (key, value) in &self.config {
            config[key] = value.clone();
        }
        for (path, value) in &self.changes {
            let (section, key) = path.rsplit_once('.').map_or((String::new(), path.as_str()), |(section, key)| {
                (format!("/{}", section.replace('.', "/")), key)
            });
            config.pointer_mut(&section).unwrap()[key] = value.clone();
        }
        Model::read_config("config.json", &config.to_string(), &ReadOptions::default())
            .map_err(|error| error.to_string())
    }

    fn ours(&self) -> Pools {
        let words = self.words.iter().map(String::as_str);
        let start = "python -m sglang.launch_server --model-path m --context-length".split(' ').chain([LENGTH]);
        let longer = ("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN".to_owned(), "1".to_owned());
        let words = start.chain(words).map(str::to_owned).collect();
        let launch = Launch { words, env: [longer].into(), ..Launch::default() };
        let device: Devices = match self.capability {
            90 => "8xh100",
            100 => "8xb200",
            _ => "8xrtx-pro-6000",
        }
        .parse()
        .unwrap();
        let options = Options {
            version: Some("0.5.23".into()),
            devices: Some(device),
            cache_bytes: Some(Logged::exact(self.gib << 30)),
            ..Options::default()
        };
        let found = answer(&launch, self.model()?, &options).map_err(|error| error.to_string())?;
        if found.starts == Starts::No {
            return Err(found.reason.unwrap_or_default());
        }
        let of = |fact: Fact| found.facts.get(&fact).map(|number| number.low);
        Ok([of(Fact::Tokens), of(Fact::WindowTokens), of(Fact::StateSlots)])
    }
}

/// Questions with its answers.
fn asked(set: &str) -> Vec<(Question, Pools)> {
    let (questions, answers) =
        (fixture(&format!("oracles/{set}.sglang.jsonl")), fixture(&format!("oracles/sglang-0.5.23.{set}.txt")));
    assert_eq!(questions.lines().count(), answers.lines().count());
    let answer = |said: &str| match serde_json::from_str(said).unwrap() {
        Value::String(why) => Err(why),
        said => Ok(["tokens", "window", "slots"].map(|key| said[key].as_u64())),
    };
    let question = |asked: &str| serde_json::from_str(asked).unwrap();
    questions.lines().zip(answers.lines()).map(|(asked, said)| (question(asked), answer(said))).collect()
}

#[test]
fn compressed_caches_have_the_pools_of_the_engine() {
    let same = |ours: &Pools, said: &Pools| ours.is_err() && said.is_err() || ours.is_ok() && ours == said;
    let wrong = asked("compressed").into_iter().filter_map(|(question, said)| {
        let ours = question.ours();
        (!same(&ours, &said)).then(|| format!("{question:?}\n  {ours:?}\n  {said:?}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Encoders, which keep nothing, although it has pools for them.
const ENCODERS: [&str; 12] = [
    "bert",
    "bert-generation",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
];

/// Models whose pools are otherwise, and why.
const OTHERWISE: [(&str, &str); 6] = [
    ("state-spaces__mamba2-2.7b", "a file of another library, of which it reads nothing"),
    ("transformers__zaya", ZAYA),
    ("../published/zaya1_8b", ZAYA),
    ("transformers:zaya", ZAYA),
    ("transformers:mllama", "its attention over images is not described"),
    ("transformers:qwen3_asr", "it reads `thinker_config`, which the class does not write"),
];

const ZAYA: &str = "it numbers layers by their halves, so that it takes every second one of this form for experts";

/// Files that name a class by another name than it has.
const OTHER_NAMES: [&str; 3] = ["MiniMaxAI__MiniMax-M3", "../published/chatglm3", "../published/ring_linear"];

/// Classes that neither it nor transformers has, and those of transformers whose keys do not go into its pool.
#[test]
fn models_of_code_that_it_lacks_are_refused() {
    let lacks = |said: &Pools| {
        let is_so = |why: &String| why.contains("Cannot find model module") || why.contains("keys are wider");
        said.as_ref().is_err_and(is_so)
    };
    let of_others = |name: &str| OTHER_NAMES.contains(&name) || name == "transformers:kimi_k25";
    let asked = asked("pools").into_iter().filter(|(question, said)| lacks(said) && !of_others(&question.model));
    let planned: Vec<String> = asked.filter(|(question, _)| question.ours().is_ok()).map(|(of, _)| of.model).collect();
    assert!(planned.is_empty(), "{planned:?}");
}

/// The zoo, the configs beside it, and the defaults of transformers' classes, as far as it loads them.
#[test]
fn models_that_it_loads_have_the_pools_of_the_engine() {
    let (mut loaded, mut differ) = (0, Vec::new());
    let questions = asked("pools");
    let count = questions.len();
    for (question, said) in questions {
        // What it does not load is the oracle's to say.
        let Ok(said) = said else { continue };
        let ours = question.ours();
        if question.model.strip_prefix("transformers:").is_some_and(|class| ENCODERS.contains(&class)) {
            assert_eq!(ours, Ok([None; 3]), "{}", question.model);
            continue;
        }
        // The engine refuses how its weights are quantised, which its pools are not asked.
        if question.model == "../published/b_bitnet" {
            assert!(ours.is_err_and(|said| said.contains("Unknown quantization method: bitnet")));
            continue;
        }
        loaded += 1;
        // Tokens that take no bytes are as many as the context has.
        let same = match (&ours, said) {
            (Ok([None, window, Some(slots)]), [Some(4096), its_window, its_slots]) => {
                *window == its_window && Some(*slots) == its_slots
            }
            _ => ours == Ok(said),
        };
        if !same {
            differ.push((question.model, format!("{ours:?}, it {said:?}")));
        }
    }
    let is_known = |name: &str| OTHERWISE.iter().any(|(known, _)| *known == name);
    let unexpected: Vec<_> = differ.iter().filter(|(name, _)| !is_known(name)).collect();
    assert!(unexpected.is_empty(), "{} of {loaded}: {unexpected:#?}", unexpected.len());
    assert_eq!(differ.len(), OTHERWISE.len());
    let equal = loaded - differ.len();
    assert!(100 * equal >= 98 * loaded, "{equal} of {loaded}");
    let docs = fixture("../../docs/engines.md");
    let row = format!("| {count} | {loaded} | {equal} |");
    assert!(docs.contains(&row), "docs/engines.md does not say `{row}`");
}

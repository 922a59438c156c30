//! Weights that llama.cpp is told to keep elsewhere than where their layers lie: `--cpu-moe`, `--n-cpu-moe`, `--n-cpu-ffn` and `-ot`
//! (`common/arg.cpp` and `common/common.h` of b11549). Each is a regular expression that is looked for in names of tensors, and a place;
//! the first that is found decides.

use cacheplan_planner::ModelCaches;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use cacheplan_transforms::{Model, WeightClasses};
use regex_lite::{Regex, RegexBuilder};

use super::{Question, llama_cpp, spread};
use crate::error::ServeError;
use crate::flags::parse::program;
use crate::remedy::Remedy;

const ALL_EXPERTS: &str = "--cpu-moe";
const EXPERTS: &str = "--n-cpu-moe";
const DENSE: &str = "--n-cpu-ffn";
const PATTERNS: &str = "--override-tensor";
/// `LLM_FFN_EXPS_REGEX` and `LLM_FFN_DENSE_REGEX`.
const OF_EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";
const OF_DENSE: &str = r"\.ffn_(up|down|gate)\.";
/// Tensors of layers that are not counted one by one, and of none.
const OTHERS: &str = "attn_q attn_k attn_v attn_qkv attn_gate attn_output attn_q_a attn_q_b attn_kv_a_mqa attn_kv_b attn_k_b attn_v_b ssm_in ssm_out ssm_x ssm_dt ssm_conv1d shortconv.in_proj shortconv.out_proj";
const OUTPUT: &str = "output.weight";

/// What lies elsewhere.
#[derive(Default)]
pub(super) struct Moved {
    pub(super) tensors: Vec<Tensor>,
    /// Why that is not known.
    pub(super) uncounted: Option<String>,
}

/// A tensor that lies elsewhere.
pub(super) struct Tensor {
    pub(super) layer: u64,
    /// Its part of all weights.
    pub(super) part: f64,
    /// The device; none for the host.
    pub(super) to: Option<String>,
}

/// What a command says of some tensors.
struct Rule {
    /// As it is written.
    says: String,
    found_in: Regex,
    /// The layers of which that is said.
    layers: u64,
    to: Option<String>,
}

impl Rule {
    fn is_of(&self, layer: u64, name: &str) -> bool {
        layer < self.layers && self.found_in.is_match(name)
    }
}

/// Whether a command says so of any.
pub(super) fn is_told(question: &Question) -> bool {
    [ALL_EXPERTS, EXPERTS, DENSE, PATTERNS].into_iter().any(|flag| question.flag(flag).is_some())
}

/// The tensors that lie elsewhere, where their sizes are known.
pub(super) fn moved(question: &Question, model: &ModelCaches) -> Result<Moved, ServeError> {
    let patterns = match patterns(question)? {
        Ok(patterns) => patterns,
        Err(uncounted) => return Ok(Moved { uncounted: Some(uncounted), ..Moved::default() }),
    };
    let of_flags = of_flags(question);
    if patterns.is_empty() && of_flags.is_empty() {
        return Ok(Moved::default());
    }
    let known = model.model().zip(model.info().weights.and_then(|weights| weights.classes));
    let Some(blocks) = known.and_then(|(model, classes)| Block::all(model, &classes)) else {
        let uncounted = Some("what its layers take of its weights is not known".to_owned());
        return Ok(Moved { uncounted, ..Moved::default() });
    };
    let mut tensors = Vec::new();
    let mut uncounted = None;
    let mut has = vec![false; patterns.len()];
    for Block { layer, parts, of, suffix } in &blocks {
        let names: Vec<String> = parts.iter().map(|part| format!("blk.{layer}.ffn_{part}{suffix}.weight")).collect();
        for (rule, has) in patterns.iter().zip(&mut has) {
            let found = names.iter().filter(|name| rule.is_of(*layer, name)).count();
            *has |= found > 0;
            // Some files have two of them in one.
            if found > 0 && found < names.len() && suffix.is_empty() {
                uncounted = Some(format!("what `{}` moves of a feed-forward block is not known", rule.says));
            }
        }
        for name in &names {
            let first = |rules: &[Rule]| rules.iter().find(|rule| rule.is_of(*layer, name)).map(|rule| rule.to.clone());
            let to = match (first(&patterns), first(&of_flags)) {
                (Some(one), Some(other)) if one != other => {
                    uncounted = Some(format!("which of {PATTERNS} and the other flags moves `{name}` is not known"));
                    continue;
                }
                (Some(to), _) | (None, Some(to)) => to,
                (None, None) => continue,
            };
            tensors.push(Tensor { layer: *layer, part: of / names.len() as f64, to });
        }
    }
    let layers = u64::from(model.info().layers);
    for (rule, has) in patterns.iter().zip(has) {
        let others = |layer: u64| OTHERS.split(' ').map(move |name| format!("blk.{layer}.{name}.weight"));
        let moves_others = rule.found_in.is_match(OUTPUT)
            || (0..layers).any(|layer| others(layer).any(|name| rule.found_in.is_match(&name)));
        match (moves_others, has) {
            (true, _) => {
                uncounted = Some(format!("what `{}` moves besides feed-forward blocks is not counted", rule.says));
            }
            (false, false) => {
                uncounted = Some(format!("no tensor that is counted here has a name like `{}`", rule.says));
            }
            (false, true) => {}
        }
    }
    Ok(match uncounted {
        Some(_) => Moved { uncounted, ..Moved::default() },
        None => Moved { tensors, uncounted },
    })
}

/// What flags of their own say, of experts and of dense blocks.
fn of_flags(question: &Question) -> Vec<Rule> {
    let all = question.is_on(ALL_EXPERTS).then_some((ALL_EXPERTS, OF_EXPERTS, u64::MAX));
    let first =
        |flag: &'static str, of: &'static str| llama_cpp::counted(question, flag).map(|layers| (flag, of, layers));
    let told = [all, first(EXPERTS, OF_EXPERTS), first(DENSE, OF_DENSE)].into_iter().flatten();
    let rule = |(flag, of, layers): (&str, &str, u64)| {
        Some(Rule { says: flag.to_owned(), found_in: Regex::new(of).ok()?, layers, to: None })
    };
    told.filter_map(rule).collect()
}

/// What `-ot` says, `PATTERN=PLACE` several times; else why that is not read.
fn patterns(question: &Question) -> Result<Result<Vec<Rule>, String>, ServeError> {
    const HOST: &str = "CPU";
    /// A pattern that takes more is none that anybody writes.
    const LARGEST: usize = 1 << 16;
    let said = question.flag(PATTERNS).map(|setting| setting.values.join(",")).unwrap_or_default();
    let mut rules = Vec::new();
    for part in said.split(',').filter(|_| !said.is_empty()) {
        let Some((pattern, place)) = part.split_once('=') else {
            let said = format!("error while handling argument \"{PATTERNS}\": invalid value");
            let remedies = vec![Remedy::Remove(PATTERNS)];
            return Err(ServeError::Parser { program: program(question.engine.engine), said, remedies });
        };
        let to = match place {
            HOST => None,
            place => match spread::named(question, place) {
                Ok(device) => Some(device),
                Err(_) => {
                    let why = format!("what lies in buffers of `{place}` was not read");
                    return Err(ServeError::unread(PATTERNS, why, [Remedy::Remove(PATTERNS)]));
                }
            },
        };
        match RegexBuilder::new(pattern).size_limit(LARGEST).build() {
            Ok(found_in) => rules.push(Rule { says: part.to_owned(), found_in, layers: u64::MAX, to }),
            Err(_) => return Ok(Err(format!("`{pattern}` is no regular expression that is read here"))),
        }
    }
    Ok(Ok(rules))
}

/// Matrices of a feed-forward block that are alike.
struct Block {
    layer: u64,
    parts: &'static [&'static str],
    /// Their part of all weights.
    of: f64,
    suffix: &'static str,
}

impl Block {
    /// Those of all layers: dense, of the experts that tokens are routed to, and of those that all pass.
    fn all(model: &Model, classes: &WeightClasses) -> Option<Vec<Self>> {
        const GATED: &[&str] = &["gate", "up", "down"];
        const PLAIN: &[&str] = &["up", "down"];
        let whole = model.info.weights?.bytes as f64;
        type Width = fn(&FeedForward) -> u64;
        let kinds: [(&'static str, u64, Width); 3] = [
            ("", classes.dense, |block| if block.experts == 0 { block.intermediate_size } else { 0 }),
            ("_exps", classes.routed, |block| block.experts.saturating_mul(block.intermediate_size)),
            ("_shexp", classes.shared, |block| block.shared_size),
        ];
        let mut blocks = Vec::new();
        for (suffix, bytes, width) in kinds {
            let all = || {
                model.layers.iter().zip(0..).flat_map(|(layer, index)| {
                    let of_layer = layer.blocks.iter();
                    of_layer.filter_map(move |block| match block {
                        BlockSpec::FeedForward(block) => Some((index, block)),
                        _ => None,
                    })
                })
            };
            let size = |block: &FeedForward| width(block) as f64 * block.matrices as f64;
            let sum: f64 = all().map(|(_, block)| size(block)).sum();
            let of_kind = all().filter(|(_, block)| size(block) > 0.0).map(|(layer, block)| Self {
                layer,
                parts: if block.matrices > 2 { GATED } else { PLAIN },
                of: bytes as f64 / whole * size(block) / sum,
                suffix,
            });
            blocks.extend(of_kind);
        }
        (whole > 0.0).then_some(blocks)
    }
}

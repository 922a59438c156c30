//! How a quantised checkpoint stores its matrices: which formats it has, and of which modules.

use cacheplan_handlers::DType;
use serde_json::Value;

use super::modules::{Modules, Share, is_matrix};
use super::quantization::SECTIONS;
use super::values::Values;
use crate::graph::Name;
use crate::weights::Stored;

/// The formats of a checkpoint; the first whose modules have a weight is its own, unless it is left out.
#[derive(Default)]
pub(super) struct Scheme {
    formats: Vec<(Targets, Stored)>,
    left_out: Modules,
}

enum Targets {
    All,
    Experts,
    Listed(Modules),
}

impl Scheme {
    /// How the weight of that name is stored, where not in the model's dtype; an error is why nothing tells.
    pub(super) fn of(&self, name: &Name) -> Result<Option<Stored>, String> {
        if self.formats.is_empty() || !is_matrix(name) || self.whole(&self.left_out, name)? {
            return Ok(None);
        }
        for (targets, stored) in &self.formats {
            let meant = match targets {
                Targets::All => true,
                Targets::Experts => name.part == "mlp.experts.weight",
                Targets::Listed(modules) => self.whole(modules, name)?,
            };
            if meant {
                return Ok(Some(*stored));
            }
        }
        Ok(None)
    }

    fn whole(&self, modules: &Modules, name: &Name) -> Result<bool, String> {
        match modules.share(name)? {
            Share::All => Ok(true),
            Share::None => Ok(false),
            Share::Part => {
                let (part, layer) =
                    (&name.part, name.layer.map_or_else(String::new, |layer| format!(" of layer {layer}")));
                Err(format!(
                    "its quantisation lists some of the modules of `{part}`{layer}; the tensors' headers tell them"
                ))
            }
        }
    }
}

/// Keys under which schemes list modules that they leave as they are.
const LEFT_OUT: [&str; 5] =
    ["modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules", "ignored_layers"];

/// Words of entries that are about towers.
const TOWERS: [&str; 5] = ["vis", "image", "audio", "tower", "multi_modal"];

/// How the checkpoint's weights are stored; an error is why its config does not tell.
pub(super) fn read(values: &Values<'_>) -> Result<Scheme, String> {
    let found = SECTIONS.iter().find_map(|section| Some((*section, values.get(section)?)));
    let Some((name, section)) = found else {
        return match values.dtype(&super::DTYPES) {
            Ok(Some((DType::F8E4m3 | DType::F8E5m2, key))) => Err(format!(
                "`{key}` has 8 bits and no quantization_config, of which only the tensors' headers tell the weights"
            )),
            _ => Ok(Scheme::default()),
        };
    };
    let word = |key: &str| section.get(key).and_then(Value::as_str);
    let flag = |key: &str| section.get(key).and_then(Value::as_bool);
    let method = word("quant_method").or(word("quant_algo").map(|_| "modelopt")).unwrap_or("absent");
    let listed: Vec<&str> = LEFT_OUT.iter().flat_map(|key| words(section.get(key))).collect();
    let unknown = |what: &str| format!("`{name}` has {what}, of which only the tensors' headers tell the weights");
    let all = |stored: Stored| Ok(vec![(Targets::All, stored)]);
    // What calibrates a model to lists of its own leaves the head alone unless it says so; the others always do.
    let lists_head = matches!(method, "compressed-tensors" | "modelopt" | "modelopt_fp4" | "modelopt_mixed");
    let known = match method {
        "fp8" | "fbgemm_fp8" => {
            let experts = (word_of(values, "expert_dtype") == Some("fp4")).then_some((Targets::Experts, MXFP4));
            Ok(experts.into_iter().chain([(Targets::All, FP8)]).collect())
        }
        // The format of gpt-oss: only experts have blocks of 32 with a scale.
        "mxfp4" => Ok(vec![(Targets::Experts, MXFP4)]),
        "awq" | "awq_marlin" => {
            packed(section, flag("zero_point").unwrap_or(true)).map(|packed| (Targets::All, packed)).map(one)
        }
        "gptq" | "gptq_marlin" | "auto-round" | "intel/auto-round" => {
            match ["dynamic", "extra_config"].iter().find(|key| has(section, key)) {
                Some(key) => Err(format!("`{key}`")),
                None => packed(section, true).map(|packed| (Targets::All, packed)).map(one),
            }
        }
        // Four weights of three values each in a byte.
        "bitnet" => all(Stored::Packed { bits: 2, group: None, of_group: 0 }),
        "bitsandbytes" => match (flag("load_in_4bit"), flag("bnb_4bit_use_double_quant")) {
            // A scale of 64, itself in 8 bits with one of 256 of these.
            (Some(true), Some(true)) => all(Stored::Packed { bits: 4, group: Some(64 * 256), of_group: 256 * 8 + 32 }),
            (Some(true), _) => all(Stored::Packed { bits: 4, group: Some(64), of_group: 32 }),
            _ => all(Stored::As(DType::Int8)),
        },
        _ if lists_head => groups(section),
        method => Err(format!("quant_method {method}")),
    };
    let formats = known.map_err(|what| unknown(&what))?;
    let head = (!lists_head && flag("lm_head") != Some(true)).then_some("lm_head");
    let takes_towers =
        (lists_head || method == "bitsandbytes") && formats.iter().any(|(of, _)| matches!(of, Targets::All));
    if takes_towers && values.is_nested() && !listed.iter().any(|entry| TOWERS.iter().any(|word| entry.contains(word)))
    {
        return Err(unknown("no word about what stands beside the decoder"));
    }
    let left_out =
        Modules::new(listed.into_iter().chain(head)).map_err(|entry| unknown(&format!("the entry {entry}")))?;
    Ok(Scheme { formats, left_out })
}

const FP8: Stored = Stored::As(DType::F8E4m3);
const MXFP4: Stored = Stored::As(DType::Mxfp4);

fn one<T>(format: T) -> Vec<T> {
    vec![format]
}

fn word_of<'v>(values: &'v Values<'_>, key: &str) -> Option<&'v str> {
    values.get(key).and_then(Value::as_str)
}

fn words(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn has(section: &Value, key: &str) -> bool {
    section.get(key).is_some_and(|value| value.as_object().map_or(!value.is_null(), |map| !map.is_empty()))
}

/// Whole numbers of some bits with a scale of 16 bits, and a zero point, for a group.
fn packed(section: &Value, zero_points: bool) -> Result<Stored, String> {
    let number = |keys: [&str; 2]| keys.iter().find_map(|key| section.get(key).and_then(Value::as_i64));
    let bits =
        number(["bits", "w_bit"]).and_then(|bits| u64::try_from(bits).ok()).filter(|bits| (1..=8).contains(bits));
    let bits = bits.ok_or("no number of bits")?;
    let group = number(["group_size", "q_group_size"]).ok_or("no group_size")?;
    // -1 is a whole column.
    let group = u64::try_from(group).ok().filter(|&group| group > 0);
    Ok(Stored::Packed { bits, group, of_group: 16 + if zero_points { bits } else { 0 } })
}

/// The groups of modules that compressed-tensors and ModelOpt state, or ModelOpt's one algorithm.
fn groups(section: &Value) -> Result<Vec<(Targets, Stored)>, String> {
    let sparse = section.get("sparsity_config").and_then(|config| config.get("format")).and_then(Value::as_str);
    if let Some(format) = sparse.filter(|format| *format != "dense") {
        return Err(format!("sparse weights in the format {format}"));
    }
    if let Some(groups) = section.get("config_groups").and_then(Value::as_object).filter(|groups| !groups.is_empty()) {
        let group = |(name, group): (&String, &Value)| {
            let targets: Vec<&str> = words(group.get("targets")).collect();
            let targets = match targets[..] {
                [] => return Err(format!("no targets of {name}")),
                _ if targets.contains(&"Linear") => Targets::All,
                _ => Targets::Listed(Modules::new(targets).map_err(|entry| format!("the entry {entry}"))?),
            };
            let weights = group.get("weights").filter(|weights| weights.is_object());
            Ok((targets, compressed(weights.ok_or_else(|| format!("no weights of {name}"))?)?))
        };
        return groups.iter().map(group).collect();
    }
    if let Some(layers) = section.get("quantized_layers").and_then(Value::as_object).filter(|layers| !layers.is_empty())
    {
        let mut formats: Vec<(Vec<&str>, Stored)> = Vec::new();
        for (module, of) in layers {
            let stored = algorithm(of)?;
            match formats.iter_mut().find(|(_, known)| *known == stored) {
                Some((modules, _)) => modules.push(module),
                None => formats.push((vec![module], stored)),
            }
        }
        let listed = |(modules, stored)| Ok((Targets::Listed(Modules::new(modules).map_err(str::to_owned)?), stored));
        return formats.into_iter().map(listed).collect();
    }
    algorithm(section).map(|stored| vec![(Targets::All, stored)])
}

/// What compressed-tensors states of one group's weights.
fn compressed(weights: &Value) -> Result<Stored, String> {
    let number = |key: &str| weights.get(key).and_then(Value::as_u64);
    let kind = weights.get("type").and_then(Value::as_str).unwrap_or("absent");
    let bits = number("num_bits").ok_or("no num_bits")?;
    let symmetric = weights.get("symmetric").and_then(Value::as_bool).unwrap_or(true);
    let group = number("group_size").filter(|&group| group > 0);
    match (kind, bits, group) {
        ("float", 8, Some(32)) => Ok(Stored::As(DType::Mxfp8)),
        ("float", 8, _) => Ok(FP8),
        ("float", 4, Some(16)) => Ok(Stored::As(DType::Nvfp4)),
        ("float", 4, Some(32)) => Ok(MXFP4),
        ("int", 2 | 4 | 8, group) => {
            Ok(Stored::Packed { bits, group, of_group: 16 + if symmetric { 0 } else { bits } })
        }
        _ => Err(format!("weights of type {kind} of {bits} bits")),
    }
}

/// What ModelOpt calls a format.
fn algorithm(section: &Value) -> Result<Stored, String> {
    let word = section.get("quant_algo").and_then(Value::as_str).unwrap_or("absent");
    match word.to_uppercase() {
        name if name.contains("NVFP4") => Ok(Stored::As(DType::Nvfp4)),
        name if name.contains("MXFP4") => Ok(MXFP4),
        name if name.contains("MXFP8") => Ok(Stored::As(DType::Mxfp8)),
        name if name.starts_with("FP8") => Ok(FP8),
        name if name.starts_with("W4A16_AWQ") || name.starts_with("W4A8_AWQ") => {
            let group = section.get("group_size").and_then(Value::as_u64).filter(|&group| group > 0).unwrap_or(128);
            Ok(Stored::Packed { bits: 4, group: Some(group), of_group: 16 })
        }
        name if name.starts_with("W8A") || name == "INT8_SQ" => Ok(Stored::As(DType::Int8)),
        name => Err(format!("quant_algo {name}")),
    }
}

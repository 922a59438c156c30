//! Which kind each layer is, from whichever key says so.

use serde_json::Value;

use super::DRAFT_LAYERS;
use super::assume::Assumption;
use super::description::{Description, KINDS, Pattern};
use super::expr::Expr;
use super::values::Values;
use crate::frontend::FrontendError;
use crate::near::near;

/// The kind of every layer.
pub(super) struct LayerKinds {
    names: Vec<String>,
    of: Vec<usize>,
}

/// Kinds that mean the same in every architecture, with the blocks of such a layer.
const USUAL: [(&str, &[&str]); 3] = [
    ("attention", &["attention", "feed_forward"]),
    ("sliding_attention", &["sliding_attention", "feed_forward"]),
    ("none", &[]),
];

/// The blocks of a kind that descriptions need not spell out.
pub(super) fn usual_blocks(kind: &str) -> Option<&'static [&'static str]> {
    USUAL.iter().find(|(name, _)| *name == kind).map(|&(_, blocks)| blocks)
}

/// The kinds that descriptions need not spell out.
pub(super) fn usual_kinds() -> impl Iterator<Item = &'static str> {
    USUAL.iter().map(|(kind, _)| *kind)
}

/// The blocks that layers of a model can have: all of its kinds and, as far as it can spell them, the usual ones.
pub(super) fn possible_blocks(description: &Description) -> impl Iterator<Item = &str> {
    let patterns = description.pattern.as_slice();
    let listed = |pattern: &Pattern| pattern.key.is_some() || pattern.counts.is_some() || !pattern.joined.is_empty();
    let listed = patterns.iter().any(listed);
    let spelled = move |kind: &str| match patterns {
        [] => kind == "attention",
        patterns => listed || patterns.iter().any(|pattern| pattern.kinds.iter().any(|name| name == kind)),
    };
    let usual = USUAL.iter().filter(move |(kind, _)| spelled(kind) && !description.kinds.contains_key(*kind));
    let usual = usual.flat_map(|(_, blocks)| blocks.iter().copied());
    description.kinds.values().flatten().map(String::as_str).chain(usual)
}

/// The kind that a spelling of a model's file stands for.
pub(super) fn kind_of<'a>(spelling: &'a str, description: &'a Description) -> Option<&'a str> {
    if let Some(kind) = description.names.get(spelling) {
        return Some(kind);
    }
    let known = description.kinds.contains_key(spelling) || usual_blocks(spelling).is_some();
    if known { Some(spelling) } else { (spelling == "full_attention").then_some("attention") }
}

impl LayerKinds {
    pub(super) fn read(
        description: &Description,
        values: &Values<'_>,
        layers: u32,
        assumptions: &[Assumption],
    ) -> Result<Self, FrontendError> {
        let mut spellings = None;
        for pattern in &description.pattern {
            spellings = pattern.spellings(values, layers)?;
            if spellings.is_some() {
                break;
            }
        }
        let mut spellings = match spellings {
            Some(spellings) => spellings,
            None if description.pattern.is_empty() => Spellings::all("attention", layers),
            None => return Err(missing_pattern(description, values)),
        };
        for assumption in assumptions {
            let Assumption::LayerKind { layer, kind } = assumption else { continue };
            let Some(slot) = spellings.of.get_mut(*layer as usize) else {
                return Err(FrontendError::Assumption {
                    text: format!("layer.{layer}={kind}"),
                    reason: format!("the model has {layers} layers, numbered from 0"),
                });
            };
            *slot = spellings.distinct.len();
            spellings.distinct.push(kind.clone());
            values.note(format!("layer {layer}"), &kind, "stated by the caller", true);
        }
        Self::resolve(&spellings, description, values)
    }

    /// Translates each distinct spelling once.
    fn resolve(spellings: &Spellings, description: &Description, values: &Values<'_>) -> Result<Self, FrontendError> {
        let mut names: Vec<String> = Vec::new();
        let mut by_spelling: Vec<Option<usize>> = vec![None; spellings.distinct.len()];
        let mut of = Vec::with_capacity(spellings.of.len());
        for (layer, &spelling) in (0u32..).zip(&spellings.of) {
            let index = match by_spelling[spelling] {
                Some(index) => index,
                None => {
                    let found = spellings.distinct[spelling].as_str();
                    let Some(kind) = kind_of(found, description) else {
                        let known = known(description);
                        return Err(FrontendError::UnknownLayerKind {
                            file: values.file.to_owned(),
                            model_type: values.model_type.clone(),
                            layer,
                            found: found.into(),
                            near: near(found, known.iter().copied()).into(),
                            known: known.join(", ").into(),
                        });
                    };
                    let index = names.iter().position(|name| name == kind).unwrap_or_else(|| {
                        names.push(kind.to_owned());
                        names.len() - 1
                    });
                    *by_spelling[spelling].insert(index)
                }
            };
            of.push(index);
        }
        Ok(Self { names, of })
    }

    /// The distinct kinds.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The last layer before `end` of the same kind as `layer`.
    pub(super) fn last_alike(&self, layer: u32, end: u32) -> Option<u32> {
        (0..end).rev().find(|&other| self.of(other) == self.of(layer))
    }

    /// The index in [`LayerKinds::names`] of a layer's kind.
    pub(super) fn of(&self, layer: u32) -> usize {
        self.of[layer as usize]
    }
}

/// What a model's file calls each layer.
struct Spellings {
    distinct: Vec<String>,
    of: Vec<usize>,
}

impl Spellings {
    fn all(kind: &str, layers: u32) -> Self {
        Self { distinct: vec![kind.to_owned()], of: vec![0; layers as usize] }
    }

    fn collect<'a>(each: impl Iterator<Item = std::borrow::Cow<'a, str>>) -> Self {
        let mut spellings = Self { distinct: Vec::new(), of: Vec::new() };
        for spelling in each {
            let known = spellings.distinct.iter().position(|known| *known == spelling);
            let index = known.unwrap_or_else(|| {
                spellings.distinct.push(spelling.into_owned());
                spellings.distinct.len() - 1
            });
            spellings.of.push(index);
        }
        spellings
    }
}

impl Pattern {
    /// What each layer is called according to this source; `None` if its keys are not there.
    fn spellings(&self, values: &Values<'_>, layers: u32) -> Result<Option<Spellings>, FrontendError> {
        let invalid = |reason: String| FrontendError::description(&values.model_type, reason);
        if let Some(when) = &self.when {
            let condition = Expr::parse(when).map_err(invalid)?;
            if values.eval(&condition, 0)?.is_none_or(|number| number.value == 0) {
                return Ok(None);
            }
        }
        if let Some(key) = &self.key {
            return self.listed(key, values, layers);
        }
        if !self.joined.is_empty() {
            return joined(&self.joined, values, layers);
        }
        if let Some(key) = &self.counts {
            return counted(key, values, layers);
        }
        match (&self.choose, self.kinds.as_slice()) {
            (_, []) => Err(invalid("a [[pattern]] needs `kinds`, `key`, `joined` or `counts`".to_owned())),
            (Some(choose), kinds) => chosen(&Expr::parse(choose).map_err(invalid)?, kinds, values, layers),
            (None, [kind]) => {
                values.note("layer kinds", &format!("all {kind}"), "the architecture", false);
                Ok(Some(Spellings::all(kind, layers)))
            }
            (None, kinds) => {
                let hits = self.layers.as_ref();
                let hits = hits
                    .ok_or_else(|| invalid("a [[pattern]] of several kinds needs `choose` or `layers`".to_owned()))?;
                Ok(Some(fixed(hits, kinds, values, layers)))
            }
        }
    }

    fn listed(&self, key: &str, values: &Values<'_>, layers: u32) -> Result<Option<Spellings>, FrontendError> {
        let Some(value) = values.get(key) else { return Ok(None) };
        let mut spellings = match value {
            Value::String(text) => Spellings::collect(text.chars().map(|letter| letter.to_string().into())),
            Value::Array(list) => Spellings::collect(list.iter().map(|entry| match entry {
                Value::String(text) => text.as_str().into(),
                other => other.to_string().into(),
            })),
            other => return Err(values.bad(key, other, "a list or a text with one entry per layer was expected")),
        };
        let (found, wanted) = (spellings.of.len(), layers as usize);
        if self.repeat && found > 0 {
            spellings.of = spellings.of.iter().copied().cycle().take(wanted).collect();
        } else if found > wanted && found - wanted == draft_layers(values)? {
            spellings.of.truncate(wanted);
        } else if found != wanted {
            let expected = format!("it has {found} entries, the model has {wanted} layers");
            return Err(values.bad(key, value, &expected));
        }
        values.note("layer kinds", &format!("{} kinds", spellings.distinct.len()), key, false);
        Ok(Some(spellings))
    }
}

/// How many draft layers a list of layers may go on with.
fn draft_layers(values: &Values<'_>) -> Result<usize, FrontendError> {
    let invalid = |reason: String| FrontendError::description(&values.model_type, reason);
    let expr = Expr::parse(DRAFT_LAYERS).map_err(invalid)?;
    let number = values.eval(&expr, 0)?;
    Ok(number.map_or(0, |number| usize::try_from(number.value).unwrap_or(usize::MAX)))
}

/// Several lists make up one; it counts only where all of them are there.
fn joined(parts: &[String], values: &Values<'_>, layers: u32) -> Result<Option<Spellings>, FrontendError> {
    let mut words: Vec<std::borrow::Cow<'_, str>> = Vec::new();
    for part in parts {
        let (key, times) = part.split_once(" * ").unwrap_or((part, ""));
        let Some(value) = values.get(key) else { return Ok(None) };
        let list = value.as_array().map(|list| list.iter().map(serde_json::Value::as_str).collect::<Option<Vec<_>>>());
        let Some(list) = list.flatten() else { return Err(values.bad(key, value, "a list of kinds was expected")) };
        let times = match (times, values.get(times)) {
            ("", _) => 1,
            (_, None) => return Ok(None),
            (_, Some(stated)) => stated
                .as_u64()
                .filter(|&stated| stated <= u64::from(layers))
                .ok_or_else(|| values.bad(times, stated, &format!("a number of at most {layers} was expected")))?,
        };
        words.extend((0..times).flat_map(|_| list.iter().map(|&word| word.into())));
        if words.len() > layers as usize {
            break;
        }
    }
    if words.len() != layers as usize {
        let found = words.len().into();
        return Err(values.bad(&parts.join(", "), &found, &format!("the model has {layers} layers")));
    }
    values.note("layer kinds", &format!("{} lists", parts.len()), parts.join(", "), false);
    Ok(Some(Spellings::collect(words.into_iter())))
}

/// Only the number of layers of each kind is known: their order is assumed.
fn counted(key: &str, values: &Values<'_>, layers: u32) -> Result<Option<Spellings>, FrontendError> {
    let Some(value) = values.get(key) else { return Ok(None) };
    let counts = value.as_object().ok_or_else(|| values.bad(key, value, "an object of counts was expected"))?;
    let mut spellings = Spellings { distinct: Vec::new(), of: Vec::new() };
    for (kind, count) in counts {
        let count = count.as_u64().filter(|&count| count <= u64::from(layers));
        let count = count.ok_or_else(|| values.bad(key, value, "counts of layers were expected"))?;
        spellings.of.extend((0..count).map(|_| spellings.distinct.len()));
        spellings.distinct.push(kind.clone());
    }
    if spellings.of.len() != layers as usize {
        return Err(values.bad(key, value, &format!("the counts must add up to {layers} layers")));
    }
    values.note("layer kinds", &"in the order of the counts", key, true);
    Ok(Some(spellings))
}

/// The architecture itself says which layers are of the second kind.
fn fixed(hits: &[u32], kinds: &[String], values: &Values<'_>, layers: u32) -> Spellings {
    values.note("layer kinds", &format!("{} at {hits:?}", kinds[1]), "the architecture's default", true);
    let of = (0..layers).map(|layer| usize::from(hits.contains(&layer))).collect();
    Spellings { distinct: kinds.to_vec(), of }
}

/// An expression says which kind each layer is.
fn chosen(
    choose: &Expr,
    kinds: &[String],
    values: &Values<'_>,
    layers: u32,
) -> Result<Option<Spellings>, FrontendError> {
    check_lists(choose, values, layers)?;
    let last = kinds.len().saturating_sub(1);
    let mut of = Vec::with_capacity(layers as usize);
    for layer in 0..layers {
        match values.eval(choose, layer)? {
            Some(number) => of.push(usize::try_from(number.value).map_or(last, |position| position.min(last))),
            // A key that is absent for all layers leaves the question to the next source.
            None if layer == 0 => return Ok(None),
            None => {
                let expected = format!("it tells nothing of layer {layer}");
                let file = values.file.to_owned();
                return Err(FrontendError::BadValue {
                    file,
                    key: choose.keys().join(", "),
                    found: "null".to_owned(),
                    expected,
                });
            }
        }
    }
    let keys = choose.keys();
    values.note("layer kinds", &kinds.join(" or "), keys.join(", "), keys.is_empty());
    Ok(Some(Spellings { distinct: kinds.to_vec(), of }))
}

/// A list of layers must name layers that exist: a wrong base would silently drop some.
pub(super) fn check_lists(expr: &Expr, values: &Values<'_>, layers: u32) -> Result<(), FrontendError> {
    for (key, base) in expr.layer_lists() {
        let last = base + u64::from(layers);
        let outside = |entry: &&Value| entry.as_u64().is_none_or(|layer| !(base..last).contains(&layer));
        if let Some(entry) = values.layer_list(key)?.and_then(|list| list.iter().find(outside)) {
            return Err(values.bad(key, entry, &format!("layers from {base} to {} were expected", last - 1)));
        }
    }
    Ok(())
}

/// Refuses a description none of whose sources is there while a key of nearly that name is: whatever else that key means, nobody
/// reads it.
pub(super) fn refuse_misspelt(description: &Description, values: &Values<'_>) -> Result<(), FrontendError> {
    let listed = |pattern: &Pattern| pattern.key.clone().or(pattern.counts.clone());
    let keys: Option<Vec<String>> = description.pattern.iter().map(listed).collect();
    let is_absent = keys.is_some_and(|keys| !keys.is_empty() && keys.iter().all(|key| values.get(key).is_none()));
    let missing = missing_pattern(description, values);
    if is_absent && missing.has_near() { Err(missing) } else { Ok(()) }
}

fn missing_pattern(description: &Description, values: &Values<'_>) -> FrontendError {
    let sources = description.pattern.iter();
    let keys = sources.filter_map(|p| p.key.as_deref().or(p.counts.as_deref()).or(p.choose.as_deref()));
    values.none_of(KINDS, &keys.collect::<Vec<_>>(), 0)
}

/// Kinds, and the spellings of them.
pub(super) fn known(description: &Description) -> Vec<&str> {
    let mut known: Vec<&str> = description.names.keys().chain(description.kinds.keys()).map(String::as_str).collect();
    known.extend(USUAL.iter().map(|(name, _)| *name));
    known.sort_unstable();
    known.dedup();
    known
}

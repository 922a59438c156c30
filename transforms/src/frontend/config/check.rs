//! What is wrong with a description by itself, whatever config is read with it.

use super::described_block;
use super::description::Description;
use super::expr::Expr;
use super::layers::{kind_of, known, possible_blocks, usual_blocks, usual_kinds};
use crate::frontend::{DescriptionPlace, FrontendError};
use crate::near::{Near, near};

/// A key, by the names on the way to it, the word of its value that is wrong, if the key is not, and why it is.
type Fault<'a> = (Vec<&'a str>, &'a str, String);

/// Refuses names of blocks, kinds and dimensions that there are none of, blocks that no layer has, and expressions that cannot
/// be read.
pub(super) fn check(description: &Description, model_type: &str) -> Result<(), FrontendError> {
    let fault = blocks(description).or_else(|| kinds(description)).or_else(|| expressions(description));
    fault.map_or(Ok(()), |(path, word, reason)| {
        let place = Box::new(DescriptionPlace::of(&path).at(word));
        Err(FrontendError::Description { model_type: model_type.to_owned(), place, reason })
    })
}

fn blocks(description: &Description) -> Option<Fault<'_>> {
    for (kind, name) in description.kinds.iter().flat_map(|(kind, names)| names.iter().map(move |name| (kind, name))) {
        let overrides = description.blocks.get(name);
        if let Some((key, word, why)) = described_block::fault(name, overrides) {
            // A block of the description's own that no kind has by this name may be the one that is meant.
            let own = near(name, description.blocks.keys().map(String::as_str));
            let why = if own.is_empty() || overrides.is_some() {
                why
            } else {
                format!("unknown block `{name}`{}", Near(&own))
            };
            return Some(match key {
                Some(key) => (vec!["blocks", name, key], word, why),
                None => (vec!["kinds", kind], name.as_str(), why),
            });
        }
    }
    let used: Vec<&str> = possible_blocks(description).collect();
    for (name, overrides) in &description.blocks {
        if let Some((Some(key), word, why)) = described_block::fault(name, Some(overrides)) {
            return Some((vec!["blocks", name, key], word, why));
        }
        if !used.contains(&name.as_str()) {
            let near = near(name, used.iter().copied());
            return Some((vec!["blocks", name], "", format!("no kind of layer has a block `{name}`{}", Near(&near))));
        }
    }
    None
}

fn kinds(description: &Description) -> Option<Fault<'_>> {
    let fault = |kind: &str| {
        let near = near(kind, known(description));
        kind_of(kind, description).is_none().then(|| format!("unknown kind `{kind}`{}", Near(&near)))
    };
    let is_known = |kind: &str| description.kinds.contains_key(kind) || usual_blocks(kind).is_some();
    for (spelling, kind) in &description.names {
        if !is_known(kind) {
            let mut kinds: Vec<&str> = description.kinds.keys().map(String::as_str).collect();
            usual_kinds().for_each(|usual| kinds.push(usual));
            let why = format!("unknown kind `{kind}`{}", Near(&near(kind, kinds)));
            return Some((vec!["names", spelling], kind.as_str(), why));
        }
    }
    let of_patterns = description.pattern.iter().flat_map(|pattern| &pattern.kinds);
    of_patterns.into_iter().find_map(|kind| Some((vec!["pattern"], kind.as_str(), fault(kind)?)))
}

fn expressions(description: &Description) -> Option<Fault<'_>> {
    fn wrong<'a>(key: &'static str, text: &'a str) -> Option<Fault<'a>> {
        Some((vec![key], text, Expr::parse(text).err()?))
    }
    let alone =
        [("layers", &description.layers), ("hidden_size", &description.hidden_size), ("more", &description.more)];
    let shared = description.shared_layers.as_ref().map(|text| ("shared_layers", text));
    let vocabulary = description.vocabulary.as_ref().map(|text| ("vocabulary", text));
    let mut alone = alone.into_iter().chain(shared).chain(vocabulary);
    alone.find_map(|(key, text)| wrong(key, text)).or_else(|| {
        let patterns = description.pattern.iter().flat_map(|pattern| pattern.choose.iter().chain(&pattern.when));
        let requires = description.requires.iter().map(|requirement| &requirement.that);
        let numbers = description.decoder_numbers.values();
        patterns
            .map(|text| wrong("pattern", text))
            .chain(requires.map(|text| wrong("requires", text)))
            .chain(numbers.map(|text| wrong("decoder_numbers", text)))
            .find_map(|fault| fault)
    })
}

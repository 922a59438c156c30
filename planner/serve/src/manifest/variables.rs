//! Variables of a script, of a container.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::error::{ManifestError, Place};
use super::reading::Reading;
use super::unknown::{self, Why};

/// The most that one value may expand to.
const LONGEST: usize = 256 << 10;

/// Defaults within defaults.
const DEPTH: usize = 8;

/// Variables and their values, in which what is not known is marked.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables {
    values: BTreeMap<String, Variable>,
    /// Names that are exported before anything is set.
    exported: BTreeSet<String>,
    /// Whether all that is set from here on is exported (`set -a`).
    pub(super) exports_all: bool,
    /// What may have set any of them and is not read.
    unread: Vec<Unread>,
    /// Names that a program is started without, though they were exported.
    reset: BTreeSet<String>,
}

/// A file, or what a command prints, that sets variables and is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// As it is written, such as `source .env`.
    pub(super) what: String,
    pub(super) why: Why,
    /// Its line in the file.
    pub(super) line: Option<usize>,
}

impl Unread {
    pub(super) fn new(what: &str, why: Why, line: Option<usize>) -> Self {
        Self { what: unknown::written(what).trim().chars().take(120).collect(), why, line }
    }
}

/// Those that a message names.
const MOST_UNREAD: usize = 4;

#[derive(Clone, Debug)]
struct Variable {
    /// One word, unless it is an array.
    words: Vec<String>,
    is_exported: bool,
    /// Whether something that is not read stands behind it: a program is taken to see it as it was, and no word is made of it.
    is_left: bool,
}

impl Variables {
    pub(super) fn set(&mut self, name: &str, words: Vec<String>, exported: bool) {
        let was = self.values.get(name).is_some_and(|variable| variable.is_exported);
        let was = was || self.exported.contains(name) || self.exports_all && is_name(name);
        self.values.insert(name.to_owned(), Variable { words, is_exported: exported || was, is_left: false });
    }

    pub(super) fn export(&mut self, name: &str) {
        match self.values.get_mut(name) {
            Some(variable) => variable.is_exported = true,
            None if is_name(name) => drop(self.exported.insert(name.to_owned())),
            None => {}
        }
    }

    pub(super) fn unset(&mut self, name: &str) {
        self.values.remove(name);
        self.exported.remove(name);
    }

    /// Something sets variables here that is not read.
    pub(super) fn unread(&mut self, unread: Unread) {
        let is_own = |name: &str| name.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '@' | '#'));
        self.values.iter_mut().for_each(|(name, variable)| variable.is_left |= !is_own(name));
        self.also_unread(unread);
    }

    fn also_unread(&mut self, unread: Unread) {
        // The last says why a value is not known.
        self.unread.retain(|known| *known != unread);
        if self.unread.len() == MOST_UNREAD {
            self.unread.pop();
        }
        self.unread.push(unread);
    }

    /// What may have set them and is not read, and the names of those that it may have set.
    pub(super) fn may_be_set<'n>(&self, names: impl Iterator<Item = &'n str>) -> (&[Unread], Vec<&'n str>) {
        let is_known = |name: &&str| self.values.get(*name).is_some_and(|variable| !variable.is_left);
        (&self.unread, names.filter(|name| !is_known(name)).collect())
    }

    /// The value that a word is made of, which is `written` there: not known where what is not read may have set it.
    pub(super) fn seen(&self, name: &str, written: impl Fn() -> String) -> Option<Cow<'_, [String]>> {
        let known = self.values.get(name);
        match self.unread.last() {
            Some(Unread { why, line, .. }) if known.map_or_else(|| is_name(name), |variable| variable.is_left) => {
                let mark = line.map_or_else(|| why.mark(&written()), |line| why.mark_of(&written(), line));
                Some(Cow::Owned(vec![mark]))
            }
            _ => known.map(|variable| Cow::Borrowed(&*variable.words)),
        }
    }

    /// Adds those that these stand over.
    pub(super) fn stand_over(&mut self, others: Self) {
        for (name, variable) in others.values {
            self.values.entry(name).or_insert(variable);
        }
        others.unread.into_iter().for_each(|unread| self.also_unread(unread));
    }

    /// Whether a program is started without one that was exported.
    pub(super) fn is_reset(&self, name: &str) -> bool {
        self.reset.contains(name) && !self.values.contains_key(name)
    }

    /// Takes away all but these.
    pub(super) fn keep(&mut self, names: &[&str]) {
        let is_lost = |(name, variable): &(&String, &Variable)| variable.is_exported && !names.contains(&&***name);
        self.reset.extend(self.values.iter().filter(is_lost).map(|(name, _)| name.clone()));
        self.values.retain(|name, _| names.contains(&&**name));
        if names.is_empty() {
            self.unread.clear();
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&[String]> {
        self.values.get(name).map(|variable| &*variable.words)
    }

    /// Which of these words are one of the values, or have one behind `=`.
    pub(super) fn are_in(&self, words: &[String]) -> Vec<bool> {
        let values: HashSet<&str> =
            self.values.values().flat_map(|variable| &variable.words).map(String::as_str).collect();
        let is_in = |word: &String| {
            values.contains(&**word) || word.split_once('=').is_some_and(|(_, value)| values.contains(value))
        };
        words.iter().map(is_in).collect()
    }

    /// Marks those whose value is another in `others`, or that only one of both has.
    pub(super) fn mark_differing(&mut self, others: &Self, mark: impl Fn(&str) -> String) {
        let names: Vec<String> = self.values.keys().chain(others.values.keys()).cloned().collect();
        for name in names {
            if self.get(&name) != others.get(&name) {
                self.set(&name, vec![mark(&name)], true);
            }
        }
        let left = others.values.iter().filter(|(_, variable)| variable.is_left);
        left.for_each(|(name, _)| self.values.get_mut(name).into_iter().for_each(|variable| variable.is_left = true));
        others.unread.iter().for_each(|unread| self.also_unread(unread.clone()));
    }

    /// Puts a text for a character in all values.
    pub(super) fn replace(&mut self, character: char, text: &str) {
        let words = self.values.values_mut().flat_map(|variable| &mut variable.words);
        words.filter(|word| word.contains(character)).for_each(|word| *word = word.replace(character, text));
    }

    /// What it costs to copy them.
    pub(super) fn weight(&self) -> usize {
        let words = self.values.values().flat_map(|variable| &variable.words);
        let unread = self.unread.iter().map(|unread| &unread.what);
        words.chain(&self.exported).chain(unread).map(|word| 32 + word.len()).sum()
    }

    /// What a program that is started has of them.
    pub(super) fn inherited(mut self) -> Self {
        // A list is not handed on.
        self.values.retain(|_, variable| variable.is_exported && variable.words.len() == 1);
        (self.exported, self.exports_all) = (BTreeSet::new(), false);
        self
    }

    /// The value of the first that a program sees, that is not known, and that is `read`.
    pub(super) fn unknown(&self, read: impl Fn(&str) -> bool) -> Option<&str> {
        let exported = self.values.iter().filter(|(_, variable)| variable.is_exported);
        let values = exported.filter_map(|(name, variable)| Some((name, variable.words.first()?)));
        values
            .filter(|(_, value)| value.contains(unknown::MARKS))
            .find(|(name, _)| read(name))
            .map(|(_, value)| &**value)
    }

    /// The values that a program sees; those that are not known are left out.
    pub(super) fn exported(&self) -> BTreeMap<String, String> {
        let exported = self.values.iter().filter(|(_, variable)| variable.is_exported);
        let single = exported.filter_map(|(name, variable)| Some((name.clone(), variable.words.first()?.clone())));
        single.filter(|(_, value)| !value.contains(unknown::MARKS)).collect()
    }

    /// A text in which Kubernetes puts values for `$(NAME)`. What names no variable stays as it is.
    /// `is_later` says what is set only behind it, which is not put in.
    pub(super) fn kubernetes(
        &self,
        text: &str,
        is_later: impl Fn(&str) -> bool,
        reading: &Reading<'_>,
        at: &Place,
    ) -> Result<String, ManifestError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        // Where no parenthesis closes any more none is looked for, which would take the square of the text.
        let last = text.rfind(')').map_or(0, |at| text.len() - at);
        while let Some((before, behind)) = rest.split_once('$') {
            out += before;
            let inside = behind.strip_prefix('(').filter(|inside| last > 0 && inside.len() >= last);
            let name = inside.and_then(|text| text.split_once(')')).map(|(name, _)| name);
            rest = match (name, name.and_then(|name| self.seen(name, || format!("$({name})")))) {
                _ if behind.starts_with('$') => {
                    out.push(if behind.starts_with("$(") { unknown::DOLLAR } else { '$' });
                    &behind[1..]
                }
                (Some(name), None) if is_later(name) => {
                    out += &Why::Later.mark(&format!("$({name})"));
                    &behind[name.len() + 2..]
                }
                (Some(name), Some(words)) => {
                    let length: usize = words.iter().map(String::len).sum();
                    reading.charge(length, at)?;
                    out += &words.join(" ");
                    &behind[name.len() + 2..]
                }
                _ => {
                    out.push('$');
                    behind
                }
            };
            bounded(out.len(), at)?;
        }
        Ok(out + rest)
    }

    /// A text in which Compose puts values for `$NAME` and `${NAME:-default}`; it knows only what the file states.
    pub(super) fn compose(text: &str, at: &Place) -> Result<String, ManifestError> {
        Self::compose_within(text, at, DEPTH)
    }

    /// The same, where as many defaults may still stand in each other.
    fn compose_within(text: &str, at: &Place, depth: usize) -> Result<String, ManifestError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let ends = braces(text);
        while let Some((before, behind)) = rest.split_once('$') {
            out += before;
            if let Some(escaped) = behind.strip_prefix('$') {
                out.push('$');
                rest = escaped;
                continue;
            }
            let begin = text.len() - behind.len();
            let (inside, after) = match ends.get(&begin) {
                Some(end) => (&text[begin + 1..*end], &text[end + 1..]),
                None => behind.split_at(name_length(behind)),
            };
            let (name, operator) = inside.split_at(name_length(inside));
            let default = [":-", "-"].iter().find_map(|sign| operator.strip_prefix(sign));
            match default {
                _ if name.is_empty() => out.push('$'),
                Some(default) if depth > 0 => out += &Self::compose_within(default, at, depth - 1)?,
                _ => out += &Why::Interpolated.mark(&format!("${{{name}}}")),
            }
            rest = if name.is_empty() { behind } else { after };
            bounded(out.len(), at)?;
        }
        Ok(out + rest)
    }
}

/// The brace of each `${` and the one that closes it, found in one pass over the text.
fn braces(text: &str) -> HashMap<usize, usize> {
    let (mut open, mut found) = (Vec::new(), HashMap::new());
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'{' if text[..index].ends_with('$') => open.push(index),
            b'}' => found.extend(open.pop().map(|begin| (begin, index))),
            _ => {}
        }
    }
    found
}

/// The bytes of a name of a variable at the beginning of a text.
pub(super) fn name_length(text: &str) -> usize {
    if text.starts_with(|character: char| character.is_ascii_digit()) {
        return 0;
    }
    text.bytes().take_while(|byte| *byte == b'_' || byte.is_ascii_alphanumeric()).count()
}

/// Whether all of a text is the name of a variable.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && name_length(text) == text.len()
}

/// That a value is no longer than any real one.
pub(super) fn bounded(length: usize, at: &Place) -> Result<(), ManifestError> {
    if length <= LONGEST {
        return Ok(());
    }
    Err(ManifestError::TooMuch { at: at.clone(), what: "a value of bytes", most: LONGEST })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_replaces_what_it_knows_alone() {
        let (reading, at) = (Reading::new("f"), Place::default());
        let mut variables = Variables::default();
        variables.set("A", vec!["x y".to_owned()], true);
        let expanded = |text| variables.kubernetes(text, |name| name == "C", &reading, &at).unwrap();
        assert_eq!(expanded("$(A)-$$(A)-$(B)-$A-$(A"), "x y-\u{5}(A)-$(B)-$A-$(A");
        assert_eq!(unknown::written(&expanded("$(C)$$C")), "$(C)$C");
    }

    #[test]
    fn compose_takes_defaults_and_marks_the_rest() {
        let expanded = |text| unknown::written(&Variables::compose(text, &Place::default()).unwrap());
        assert_eq!(expanded("${A:-x}/${B-}/$$C/${D:?why}/$E."), "x//$C/${D}/${E}.");
        assert_eq!(expanded("${A:-${B:-4096}}-80${C:-${D-0}0}."), "4096-8000.");
        assert_eq!(expanded("${A:-${B}x}"), "${B}x");
    }
}

//! Commands of the shell's own that set variables, or the arguments of the script.

use super::super::error::ManifestError;
use super::super::unknown::{MARKS, Why};
use super::super::variables::name_length;
use super::word::Word;
use super::{Shell, assignment, behind, is_number};

/// Arguments of a script that have a name of one digit.
const POSITIONAL: usize = 9;

impl Shell<'_> {
    /// `export NAME=value`, `declare -i NAME=1+1`.
    pub(super) fn declare(&mut self, command: &str, words: &[Word]) -> Result<(), ManifestError> {
        let mut options = String::new();
        for word in words {
            match word.bare().filter(|option| option.starts_with(['-', '+'])) {
                Some(option) => options += option.trim_start_matches('-'),
                None => break,
            }
        }
        // What a function declares is its own, unless it says otherwise.
        if !self.defining.is_empty() && !matches!(command, "export" | "readonly") && !options.contains('g') {
            return Ok(());
        }
        let exports = command == "export" || options.contains('x');
        for word in words {
            match (assignment(word), word.bare()) {
                (Some((name, adds, _)), _) => {
                    let name = name.to_owned();
                    let value = self.expansion().value(&behind(word))?;
                    let is_plain = !adds && is_number(&value);
                    self.assign(word, exports)?;
                    if options.contains('n') {
                        // One name for another: what is set by either is not followed.
                        self.forget_value(&value, Why::Operator);
                        self.forget_value(&name, Why::Operator);
                    } else if options.contains('i') && !is_plain {
                        self.forget_value(&name, Why::Arithmetic);
                    } else if options.contains(['l', 'u']) && !is_plain {
                        self.forget_value(&name, Why::Operator);
                    }
                    if options.contains('i') {
                        self.integers.insert(name.clone());
                    }
                    if command == "readonly" || options.contains('r') {
                        self.fixed.insert(name);
                    }
                }
                (None, Some(name)) if name.starts_with(['-', '+']) => {}
                (None, Some(name)) => {
                    if exports {
                        self.variables.export(name);
                    }
                    if options.contains('i') {
                        self.integers.insert(name.to_owned());
                    }
                    if command == "readonly" || options.contains('r') {
                        self.fixed.insert(name.to_owned());
                    }
                }
                (None, None) => {
                    for text in self.expansion().words(word)? {
                        match crate::words::assignment(&text) {
                            // `export $(cat file)` may set any of them.
                            None if text.contains(MARKS) => self.unread(command)?,
                            None => self.variables.export(&text),
                            Some(_) => self.assign(&Word::of(&text), exports)?,
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// What another command sets, or takes away.
    pub(super) fn change(&mut self, command: &str, words: &[Word]) -> Result<(), ManifestError> {
        let is_certain = self.condition().is_none() && self.is_certain && self.defining.is_empty();
        let mut names = Vec::new();
        for word in words {
            names.extend(self.expansion().words(word)?);
        }
        names.extend(match command {
            "getopts" => vec!["OPTARG".to_owned(), "OPTIND".to_owned()],
            "read" => vec!["REPLY".to_owned()],
            _ => Vec::new(),
        });
        for name in names {
            let (name, element) = name.split_at(name_length(&name));
            match command {
                "unset" if is_certain && element.is_empty() => self.variables.unset(name),
                "unset" if element.is_empty() => self.forget_value(name, Why::Conditional),
                _ if name.is_empty() => {}
                "unset" => self.forget_value(name, Why::Operator),
                _ => self.forget_value(name, Why::Command),
            }
        }
        Ok(())
    }

    /// `set -- a b`: the arguments of the script from here on.
    pub(super) fn positional(&mut self, words: &[Word]) -> Result<(), ManifestError> {
        let mut given = Vec::new();
        for word in words {
            given.extend(self.expansion().words(word)?);
        }
        let mut at = 0;
        while let Some(option) = given.get(at).filter(|word| word.starts_with(['-', '+']) && *word != "--") {
            let named = option.ends_with('o').then(|| given.get(at + 1)).flatten();
            if option.contains('a') || named.is_some_and(|name| name == "allexport") {
                self.variables.exports_all = option.starts_with('-');
            }
            at += if option.ends_with('o') { 2 } else { 1 };
        }
        match given.get(at..) {
            None | Some([]) => Ok(()),
            Some([first, rest @ ..]) if first == "--" => self.set_positional(rest),
            Some(rest) => self.set_positional(rest),
        }
    }

    pub(super) fn shift(&mut self, words: &[Word]) -> Result<(), ManifestError> {
        let Some(given) = self.variables.get("@").map(<[String]>::to_vec) else { return Ok(()) };
        let count = words.first().map(|word| self.expansion().value(word)).transpose()?;
        match count.map_or(Ok(1), |count| count.parse::<usize>()) {
            Ok(count) => self.set_positional(given.get(count..).unwrap_or(&given)),
            Err(_) => {
                self.forget_positional();
                Ok(())
            }
        }
    }

    fn set_positional(&mut self, given: &[String]) -> Result<(), ManifestError> {
        // Those of a function are its own.
        if !self.defining.is_empty() {
            return Ok(());
        }
        self.forget_positional();
        if self.condition().is_some() || !self.is_certain {
            return Ok(());
        }
        self.origin.reading.charge(given.iter().map(|word| 32 + word.len()).sum(), &self.origin.at)?;
        for (index, word) in given.iter().enumerate().take(POSITIONAL) {
            self.variables.set(&(index + 1).to_string(), vec![word.clone()], false);
        }
        self.variables.set("#", vec![given.len().to_string()], false);
        self.variables.set("@", given.to_vec(), false);
        Ok(())
    }

    fn forget_positional(&mut self) {
        (1..=POSITIONAL).for_each(|index| self.variables.unset(&index.to_string()));
        ["@", "#"].iter().for_each(|name| self.variables.unset(name));
    }
}

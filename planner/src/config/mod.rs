//! The budget as a user states it: a file, the environment and flags, with where each value came from.

mod init;
mod reference;
mod schema;

use serde::Serialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use crate::budget::key::{BudgetKey, PREFIX, Values};
use crate::budget::{Budget, BudgetError, Origin, in_words, nearest, nearest_key};
use crate::device::DeviceInfo;
use crate::parallel::Parallel;
use crate::render::columns;

/// A value that stands above the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The key it sets, `memory.bytes`.
    pub key: String,
    /// The value as TOML, or a text without quotes.
    pub value: String,
    /// Who set it.
    pub origin: Origin,
}

impl Override {
    /// A value that a flag sets.
    pub fn by_flag(key: impl Into<String>, value: impl Into<String>, flag: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into(), origin: Origin::Flag(flag.into()) }
    }

    /// A value that is stated by a name which is no flag.
    pub fn by_argument(key: impl Into<String>, value: impl Into<String>, name: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into(), origin: Origin::Argument(name.into()) }
    }

    /// The flag or argument that set it, where one did.
    pub fn stated_by(&self) -> Option<&str> {
        if let Origin::Flag(name) | Origin::Argument(name) = &self.origin { Some(name) } else { None }
    }

    /// Whether nobody stated it.
    pub fn is_default(&self) -> bool {
        self.origin == Origin::Default
    }
}

/// A key with its value and where that came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigValue {
    /// The key, `memory.bytes`.
    pub key: &'static str,
    /// The value as TOML, or in words what holds where nobody stated it.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// A budget with the origin of each of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The budget.
    pub budget: Budget,
    /// Every key, in the order of the file that `config init` writes.
    pub settings: Vec<ConfigValue>,
}

impl From<Budget> for Config {
    /// A budget of whose values nobody says where they came from.
    fn from(budget: Budget) -> Self {
        Self { budget, settings: Vec::new() }
    }
}

/// What is divided of a device where nobody says: its usual share of all its memory.
fn usual(device: &DeviceInfo) -> [Override; 2] {
    let by_device = |key: &str, value: String| Override { key: key.to_owned(), value, origin: Origin::Device };
    [by_device("memory.fraction", f64::from(device.usual_share()).to_string()), by_device("memory.of", "total".into())]
}

impl Config {
    /// The variables that set keys, among all of the environment.
    ///
    /// # Errors
    /// A variable with our prefix that names no key, or one that would be a key's but for an underscore.
    pub fn environment(variables: impl IntoIterator<Item = (String, String)>) -> Result<Vec<Override>, BudgetError> {
        let mut overrides = Vec::new();
        for (name, value) in variables {
            let Some(rest) = name.strip_prefix(PREFIX) else {
                // One underscore where two are meant would set nothing and say nothing.
                let single = |key: &&BudgetKey| key.variable().replace("__", "_") == name.replace("__", "_");
                let Some(key) = BudgetKey::all().iter().find(single) else { continue };
                let message = format!("sets nothing; the variable of `{}` is {}", key.path, key.variable());
                return Err(BudgetError::new(Some(Origin::Environment(name)), message));
            };
            let key = rest.split("__").map(str::to_lowercase).collect::<Vec<_>>().join(".");
            if !BudgetKey::all().iter().any(|known| known.path == key) {
                let nearest = nearest(&key, BudgetKey::all().iter().map(|known| known.path));
                let message = format!("there is no key `{key}`");
                return Err(BudgetError { nearest, ..BudgetError::new(Some(Origin::Environment(name)), message) });
            }
            overrides.push(Override { key, value, origin: Origin::Environment(name) });
        }
        // The environment has no order of its own.
        overrides.sort_by(|left, right| left.key.cmp(&right.key));
        Ok(overrides)
    }

    /// Puts `flags` over `environment` over the file (its text and its name) over the defaults.
    ///
    /// # Errors
    /// A file that is no TOML, an unknown key, a value of the wrong kind, or keys that contradict each other; the error
    /// names the file and line, the variable or the flag.
    pub fn resolve(
        file: Option<(&str, &str)>,
        environment: &[Override],
        flags: &[Override],
    ) -> Result<Self, BudgetError> {
        Self::resolve_on(None, file, environment, flags)
    }

    /// As [`Config::resolve`], for a device where one is stated: where nobody states what to divide, it is
    /// [its usual share](DeviceInfo::usual_share).
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn resolve_on(
        device: Option<&DeviceInfo>,
        file: Option<(&str, &str)>,
        environment: &[Override],
        flags: &[Override],
    ) -> Result<Self, BudgetError> {
        let (text, name) = file.unwrap_or_default();
        // Errors of the file itself read best from its own text.
        let in_file = |error: BudgetError| Budget::from_toml(text, name).err().unwrap_or(error);
        let parsed = cacheplan_files::Source::parse_toml(text);
        let mut table: Table = parsed.map_err(|error| in_file(BudgetError::new(None, error.message)))?;
        // Serde would take a list for the section's keys in order.
        let mut sections = BudgetKey::all().iter().filter_map(|key| Some(key.path.split_once('.')?.0));
        if let Some(section) = sections.find(|section| table.get(*section).is_some_and(Value::is_array)) {
            let message = format!("`{section}` is a list; a section `[{section}]` was expected");
            return Err(BudgetError::new(Some(Origin::File { name: name.to_owned(), line: None }), message));
        }
        for change in environment.iter().chain(flags) {
            set(&mut table, change).map_err(in_file)?;
        }
        let is_divided = ["memory.bytes", "memory.fraction"].iter().any(|key| get(&table, key).is_some());
        let usual = device.filter(|_| !is_divided).into_iter().flat_map(usual);
        let usual: Vec<Override> = usual.filter(|share| get(&table, &share.key).is_none()).collect();
        for change in &usual {
            set(&mut table, change)?;
        }
        let overrides = || flags.iter().rev().chain(environment.iter().rev()).chain(&usual);
        let lines = DeTable::parse(text).map_err(|error| in_file(plain(None, &error)))?;
        let origin_of = |key: &BudgetKey| match overrides().find(|change| change.key == key.path) {
            Some(change) => change.origin.clone(),
            None => line_of(text, lines.get_ref(), key.path)
                .map_or(Origin::Default, |line| Origin::File { name: name.to_owned(), line: Some(line) }),
        };
        let mut settings = Vec::new();
        for key in BudgetKey::all() {
            let (origin, stated) = (origin_of(key), get(&table, key.path));
            if let Some(refused) = stated.and_then(|value| key.refuses(value)) {
                return Err(BudgetError::new(Some(origin), refused));
            }
            let value = stated.map_or_else(|| key.default.to_owned(), ToString::to_string);
            settings.push(ConfigValue { key: key.path, value, origin });
        }
        let merged = table.try_into::<Budget>().map_err(|error| plain(None, &error));
        let budget = merged.and_then(Budget::validated).map_err(|error| {
            let by_flags = overrides().find_map(wrong_by_itself).or_else(|| contradiction_of(flags, &error));
            let error = by_flags.unwrap_or_else(|| in_file(error));
            // Sizes of groups contradict each other whatever else does.
            let sizes = || overrides().filter(|change| change.key.starts_with("parallel."));
            let named = || first_named(&error.message, sizes(), |change| &change.key).map(|by| by.origin.clone());
            BudgetError { origin: error.origin.clone().or_else(named), ..error }
        })?;
        Ok(Self { budget, settings })
    }

    /// The sizes of `[parallel]` that these state, whether or not they go with each other.
    ///
    /// # Errors
    /// A value that is no size.
    pub fn parallel(stated: &[Override]) -> Result<Parallel, BudgetError> {
        let mut table = Table::new();
        for size in stated.iter().filter(|change| change.key.starts_with("parallel.")) {
            set(&mut table, size)?;
        }
        let sizes = table.remove("parallel").map(Value::try_into::<Parallel>).transpose();
        Ok(sizes.map_err(|error| plain(None, &error))?.unwrap_or_default())
    }

    /// A commented budget file that reads as the default budget.
    pub fn commented_file() -> String {
        init::commented_budget()
    }

    /// The JSON Schema (draft 2020-12) of budget files, ending with a newline.
    pub fn schema() -> String {
        schema::budget_schema()
    }

    /// The reference of all keys, as a Markdown table.
    pub fn reference() -> String {
        reference::reference()
    }

    /// Whether somebody stated this key.
    pub(crate) fn is_stated(&self, key: &str) -> bool {
        self.origin_of(key).is_some()
    }

    /// Who stated this key, where somebody did.
    pub(crate) fn origin_of(&self, key: &str) -> Option<&Origin> {
        let setting = self.settings.iter().find(|setting| setting.key == key)?;
        Some(&setting.origin).filter(|origin| origin.is_stated())
    }

    /// What is wrong of some keys, with where the first of them that somebody stated came from.
    pub(crate) fn blamed(&self, why: String) -> BudgetError {
        let stated = self.settings.iter().filter(|setting| setting.origin.is_stated());
        let origin = first_named(&why, stated, |setting| setting.key).map(|setting| setting.origin.clone());
        BudgetError::new(origin, why)
    }

    /// The keys that somebody stated, as a budget file.
    pub fn stated(&self) -> String {
        let stated = self.settings.iter();
        let stated = stated.filter(|setting| setting.origin.is_stated());
        stated.map(|setting| format!("{} = {}\n", setting.key, setting.value)).collect()
    }

    /// The value of every key, and where it came from.
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .settings
            .iter()
            .map(|setting| vec![setting.key.to_owned(), setting.value.clone(), setting.origin.to_string()])
            .collect();
        columns(&rows, &[]).into_iter().map(|line| line + "\n").collect()
    }
}

/// The value of `text`: TOML where it is that, else a text without quotes.
fn value(text: &str) -> Value {
    let parsed = cacheplan_files::Source::parse_toml::<Table>(&format!("value = {text}")).ok();
    parsed
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn set(table: &mut Table, change: &Override) -> Result<(), BudgetError> {
    let mut names: Vec<&str> = change.key.split('.').collect();
    let last = names.pop().unwrap_or_default();
    let mut at = table;
    for name in names {
        let next = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
        at = next.as_table_mut().ok_or_else(|| {
            let message = format!("sets `{}`, but `{name}` is no section in the file", change.key);
            BudgetError::new(Some(change.origin.clone()), message)
        })?;
    }
    let mut told = value(&change.value);
    // Lengths in one number are always that many.
    let is_lengths = |key: &&BudgetKey| key.path == change.key && matches!(key.values, Values::Lengths);
    if told.is_integer() && BudgetKey::all().iter().any(|key| is_lengths(&key)) {
        told = Value::Table(Table::from_iter([("fixed".to_owned(), told)]));
    }
    at.insert(last.to_owned(), told);
    Ok(())
}

fn get<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let mut names = path.split('.');
    let first = table.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))
}

/// The line where `path` is set in `text`.
fn line_of(text: &str, table: &DeTable<'_>, path: &str) -> Option<usize> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let (key, value) = table.iter().find(|(key, _)| key.get_ref().as_ref() == first)?;
    match (rest, value.get_ref()) {
        (Some(rest), DeValue::Table(inner)) => line_of(text, inner, rest),
        (Some(_), _) => None,
        (None, _) => Some(1 + text[..key.span().start.min(text.len())].matches('\n').count()),
    }
}

/// The error of a value that would be wrong whatever stands beside it.
fn wrong_by_itself(change: &Override) -> Option<BudgetError> {
    let mut alone = Table::new();
    set(&mut alone, change).ok()?;
    let error = alone.try_into::<Budget>().err()?;
    // A key that its section also needs may come from elsewhere.
    if error.message().starts_with("missing field") {
        return None;
    }
    Some(plain(Some(change.origin.clone()), &error))
}

/// The error where flags alone contradict each other as all values do.
fn contradiction_of(flags: &[Override], error: &BudgetError) -> Option<BudgetError> {
    let contradicts = |flags: &[&Override]| refused(flags).filter(|found| found.message == error.message);
    let mut at_fault: Vec<&Override> = flags.iter().collect();
    let found = contradicts(&at_fault)?;
    // Without a flag that is innocent the same is wrong.
    for flag in flags {
        let others: Vec<&Override> = at_fault.iter().copied().filter(|other| !std::ptr::eq(*other, flag)).collect();
        if contradicts(&others).is_some() {
            at_fault = others;
        }
    }
    // Of those that are left the first key that is named, else the last.
    let first = first_named(&found.message, at_fault.iter().copied(), |flag| &flag.key);
    let origin = first.or(at_fault.last().copied()).map(|flag| flag.origin.clone());
    Some(BudgetError { origin, ..found })
}

/// What is wrong of a budget of these flags alone.
fn refused(flags: &[&Override]) -> Option<BudgetError> {
    let mut alone = Table::new();
    flags.iter().try_for_each(|flag| set(&mut alone, flag)).ok()?;
    let budget = alone.try_into::<Budget>().map_err(|error| plain(None, &error));
    budget.and_then(Budget::validated).err()
}

/// That whose key a message names first.
fn first_named<'a, T>(
    message: &str,
    of: impl IntoIterator<Item = &'a T>,
    key: impl Fn(&'a T) -> &'a str,
) -> Option<&'a T> {
    let named = of.into_iter().filter_map(|one| Some((message.find(&format!("`{}`", key(one)))?, one)));
    named.min_by_key(|(at, _)| *at).map(|(_, one)| one)
}

fn plain(origin: Option<Origin>, error: &toml::de::Error) -> BudgetError {
    let message = match error.message().split('`').collect::<Vec<_>>()[..] {
        // Of the section that needs it a merged table does not say.
        ["missing field ", field, ""] => {
            let mut paths = BudgetKey::all().iter().filter(|key| key.path.rsplit('.').next() == Some(field));
            match (paths.next(), paths.next()) {
                (Some(key), None) => format!("`{}` ({}) is missing, which its section needs", key.path, key.flag),
                _ => error.message().to_owned(),
            }
        }
        _ => in_words(error.message()),
    };
    BudgetError { nearest: nearest_key(&message), ..BudgetError::new(origin, message) }
}

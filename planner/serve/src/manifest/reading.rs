//! A file that is being read, and the places in it.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use super::error::{ManifestError, Place};
use super::unknown;
use super::yaml::{Node, Value};

/// Text that variables may expand to, in a whole file: a few words can say gigabytes.
const EXPANDED: usize = 8 << 20;

/// Commands of a file.
const LAUNCHES: usize = 256;

/// What is shared while a file is read.
pub(super) struct Reading<'a> {
    /// The name of the file.
    pub(super) file: &'a str,
    expanded: Cell<usize>,
    launches: Cell<usize>,
    /// Texts of the file's `ConfigMap` objects: the object's name, the key, the text.
    config_maps: OnceCell<Vec<(String, String, String)>>,
    /// What names an engine's command and is not read.
    passed: RefCell<Vec<String>>,
    /// The first program that has flags of engines and is none.
    doubt: RefCell<Option<ManifestError>>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(file: &'a str) -> Self {
        Self {
            file,
            expanded: Cell::new(0),
            launches: Cell::new(0),
            config_maps: OnceCell::new(),
            passed: RefCell::default(),
            doubt: RefCell::default(),
        }
    }

    /// Keeps what the file's `ConfigMap` objects say, once.
    pub(super) fn keep_config_maps(&self, texts: Vec<(String, String, String)>) {
        // Nobody sets it twice.
        let _ = self.config_maps.set(texts);
    }

    /// The texts of a `ConfigMap` of this file.
    pub(super) fn config_map<'m>(&'m self, name: &'m str) -> impl Iterator<Item = (&'m str, &'m str)> {
        let texts = self.config_maps.get().into_iter().flatten();
        texts.filter(move |(map, ..)| map == name).map(|(_, key, text)| (key.as_str(), text.as_str()))
    }

    /// Notes what names an engine's command and is not read.
    pub(super) fn pass_over(&self, what: String) {
        const MOST: usize = 8;
        let mut passed = self.passed.borrow_mut();
        if passed.len() < MOST && !passed.contains(&what) {
            passed.push(what);
        }
    }

    /// What was passed over, in words.
    pub(super) fn passed(&self) -> Option<String> {
        let passed = self.passed.borrow();
        (!passed.is_empty())
            .then(|| format!("an engine's command is not read behind {}: state it by itself", passed.join(", ")))
    }

    /// Notes a program that has flags of engines and is none: what is refused where nothing else starts one.
    pub(super) fn doubt(&self, refused: ManifestError) {
        self.doubt.borrow_mut().get_or_insert(refused);
    }

    pub(super) fn doubted(&self) -> Option<ManifestError> {
        self.doubt.take()
    }

    /// Counts a command that starts an engine.
    pub(super) fn count_launch(&self, at: &Place) -> Result<(), ManifestError> {
        self.launches.set(self.launches.get() + 1);
        if self.launches.get() > LAUNCHES {
            let what = "a manifest of commands";
            return Err(ManifestError::TooMuch { at: at.clone(), what, most: LAUNCHES });
        }
        Ok(())
    }

    /// Counts text that was written nowhere.
    pub(super) fn charge(&self, bytes: usize, at: &Place) -> Result<(), ManifestError> {
        self.expanded.set(self.expanded.get().saturating_add(bytes));
        if self.expanded.get() > EXPANDED {
            let what = "an expansion of variables";
            return Err(ManifestError::TooMuch { at: at.clone(), what, most: EXPANDED });
        }
        Ok(())
    }

    /// A document from its root.
    pub(super) fn root(&'a self, node: &'a Node) -> Spot<'a> {
        Spot { reading: self, node, way: None }
    }
}

/// A value, and the way to it.
#[derive(Clone)]
pub(super) struct Spot<'a> {
    pub(super) reading: &'a Reading<'a>,
    pub(super) node: &'a Node,
    /// Its steps are shared: a path that each value has for itself would take the square of the file.
    way: Option<Rc<Step<'a>>>,
}

struct Step<'a> {
    before: Option<Rc<Step<'a>>>,
    last: Key<'a>,
}

#[derive(Clone, Copy)]
enum Key<'a> {
    Name(&'a str),
    Index(usize),
}

impl<'a> Spot<'a> {
    fn step(&self, last: Key<'a>, node: &'a Node) -> Self {
        let way = Some(Rc::new(Step { before: self.way.clone(), last }));
        Self { reading: self.reading, node, way }
    }

    /// The value of a key, unless there is none or it is null.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let (name, node) = self.node.entry(key)?;
        Some(self.step(Key::Name(name), node))
    }

    /// The value behind several keys.
    pub(super) fn dig(&self, keys: &[&str]) -> Option<Self> {
        keys.iter().try_fold(self.clone(), |spot, key| spot.get(key))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.node.entry(key).is_some()
    }

    pub(super) fn place(&self) -> Place {
        let (mut steps, mut way) = (Vec::new(), self.way.as_deref());
        while let Some(step) = way {
            steps.push(step.last);
            way = step.before.as_deref();
        }
        let mut path = String::new();
        for key in steps.iter().rev() {
            match key {
                Key::Index(index) => path += &format!("[{index}]"),
                // Labels have dots in their names.
                Key::Name(name) if name.contains('.') => path += &format!("[\"{name:.100}\"]"),
                Key::Name(name) => path += &format!("{}{name:.100}", if path.is_empty() { "" } else { "." }),
            }
        }
        Place { file: self.reading.file.to_owned(), line: Some(self.node.line), path }
    }

    pub(super) fn shape(&self, expected: &'static str) -> ManifestError {
        let found = match &self.node.value {
            Value::Text { .. } => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        };
        ManifestError::Shape { at: self.place(), found, expected }
    }

    pub(super) fn refuse(&self, what: impl Into<String>, instead: &'static str) -> ManifestError {
        ManifestError::NotRead { at: self.place(), what: what.into(), instead }
    }

    /// The scalar as it is written.
    pub(super) fn raw(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The scalar, with marks where its templates are.
    pub(super) fn text(&self) -> Result<String, ManifestError> {
        self.raw().map(unknown::mark_templates).ok_or_else(|| self.shape("a text"))
    }

    /// The text of an argument or a variable of a container, which Kubernetes takes for nothing else.
    pub(super) fn string(&self) -> Result<String, ManifestError> {
        if let Some(kind) = self.node.other_than_text() {
            return Err(self.refuse(format!("{kind}, where Kubernetes takes a text alone,"), "put it in quotes"));
        }
        self.text()
    }

    /// The scalar, which has to be known.
    pub(super) fn known(&self) -> Result<String, ManifestError> {
        let text = self.text()?;
        if text.contains(unknown::MARKS) { unknown::known(&text, &self.place()) } else { Ok(text) }
    }

    /// A number of things.
    pub(super) fn count(&self) -> Result<u32, ManifestError> {
        self.known()?.trim().parse().map_err(|_| self.shape("a whole number"))
    }

    /// The items of a list.
    pub(super) fn items(&self) -> Result<Vec<Self>, ManifestError> {
        let Value::List(items) = &self.node.value else { return Err(self.shape("a list")) };
        Ok(items.iter().enumerate().map(|(index, node)| self.step(Key::Index(index), node)).collect())
    }

    /// The items of the list of this key; none where there is no key.
    pub(super) fn list(&self, key: &str) -> Result<Vec<Self>, ManifestError> {
        self.get(key).map_or_else(|| Ok(Vec::new()), |list| list.items())
    }

    /// The keys of a map and their values, without those that are null.
    pub(super) fn entries(&self) -> Result<Vec<(&'a str, Self)>, ManifestError> {
        Ok(self.all_entries()?.into_iter().filter(|(_, value)| !value.node.is_null()).collect())
    }

    /// The same with those that have no value.
    pub(super) fn all_entries(&self) -> Result<Vec<(&'a str, Self)>, ManifestError> {
        let Value::Map(entries) = &self.node.value else { return Err(self.shape("a map")) };
        Ok(entries.iter().map(|(key, node)| (key.as_str(), self.step(Key::Name(key), node))).collect())
    }

    /// The entries of the map of this key; none where there is no key.
    pub(super) fn map(&self, key: &str) -> Result<Vec<(&'a str, Self)>, ManifestError> {
        self.get(key).map_or_else(|| Ok(Vec::new()), |map| map.entries())
    }

    /// The texts of a list.
    pub(super) fn texts(&self) -> Result<Vec<String>, ManifestError> {
        self.items()?.iter().map(Self::text).collect()
    }

    /// The known text of a key, where there is one.
    pub(super) fn known_text(&self, key: &str) -> Result<Option<String>, ManifestError> {
        self.get(key).map(|spot| spot.known()).transpose()
    }
}

//! A crate's tree of modules, and the files that a path of one of them leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::modules::Written;
use super::product::product;
use crate::files::at;

/// Gives the text of a file, if it is there.
pub(super) type Read<'a> = dyn Fn(&Path) -> Option<String> + 'a;

pub(super) struct Module {
    pub(super) file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    pub(super) written: Written,
}

pub(super) struct Tree {
    pub(super) modules: Vec<Module>,
    own_names: Vec<String>,
}

/// What a path names: a module, or something that a file defines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Module(usize),
    Item(usize),
}

impl Tree {
    pub(super) fn read(root: &Path, read: &Read<'_>) -> Result<Self, String> {
        let mut tree = Self { modules: Vec::new(), own_names: Vec::new() };
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        tree.file(root, &folder, None, read)?;
        Ok(tree)
    }

    /// Reads a module's file; `folder` is where those of its children lie.
    fn file(&mut self, file: &Path, folder: &Path, parent: Option<usize>, read: &Read<'_>) -> Result<usize, String> {
        let text = read(file).ok_or_else(|| format!("{}: is declared and not there", file.display()))?;
        let tokens = product(&text).map_err(at(&file))?;
        self.module(file, folder, parent, Written::read(tokens), read)
    }

    fn module(
        &mut self,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
        mut written: Written,
        read: &Read<'_>,
    ) -> Result<usize, String> {
        let id = self.modules.len();
        let (files, inline) = (std::mem::take(&mut written.files), std::mem::take(&mut written.inline));
        self.own_names.append(&mut written.own_names);
        self.modules.push(Module { file: file.to_owned(), parent, children: BTreeMap::new(), written });
        for declared in files {
            let below = folder.join(&declared.name);
            let (file, folder) = match declared.path {
                Some(path) => {
                    let file = plain(&file.parent().unwrap_or(Path::new("")).join(path));
                    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
                    (file, folder)
                }
                None => {
                    let beside = below.with_extension("rs");
                    (if read(&beside).is_some() { beside } else { below.join("mod.rs") }, below)
                }
            };
            let child = self.file(&file, &folder, Some(id), read)?;
            self.modules[id].children.insert(declared.name, child);
        }
        for (name, inner) in inline {
            let child = self.module(file, &folder.join(&name), Some(id), inner, read)?;
            self.modules[id].children.insert(name, child);
        }
        Ok(id)
    }

    /// Whether one of the files is a module's and the other that of its own child.
    pub(super) fn are_parent_and_child(&self, one: &Path, other: &Path) -> bool {
        self.modules.iter().any(|child| {
            let parent = child.parent.map(|parent| self.modules[parent].file.as_path());
            parent.is_some_and(|parent| {
                (parent, child.file.as_path()) == (one, other) || (parent, child.file.as_path()) == (other, one)
            })
        })
    }

    /// The files that define what a path names in a module. Where nothing of its last name is found, a macro has made it in
    /// the module that the rest of the path names.
    pub(super) fn files(&self, module: usize, path: &[String]) -> BTreeSet<&Path> {
        let named = self.named(module, path, &mut BTreeSet::new());
        let of = |named: &Named| match named {
            Named::Item(module) => Some(self.modules[*module].file.as_path()),
            Named::Module(_) => None,
        };
        named.iter().filter_map(of).collect()
    }

    fn named(&self, module: usize, path: &[String], seen: &mut BTreeSet<(usize, String)>) -> Vec<Named> {
        let Some((first, mut rest)) = path.split_first() else { return Vec::new() };
        let mut named = match first.as_str() {
            "crate" => vec![Named::Module(0)],
            "self" => vec![Named::Module(module)],
            "super" => self.modules[module].parent.map(Named::Module).into_iter().collect(),
            name if self.own_names.iter().any(|own| own == name) => vec![Named::Module(0)],
            name => self.in_scope(module, name, seen),
        };
        while let Some((name, behind)) = rest.split_first() {
            let mut next = BTreeSet::new();
            for one in &named {
                let Named::Module(of) = *one else { continue };
                match name.as_str() {
                    "super" => next.extend(self.modules[of].parent.map(Named::Module)),
                    "self" => drop(next.insert(*one)),
                    name => {
                        let found = self.in_scope(of, name, seen);
                        if found.is_empty() && behind.is_empty() {
                            next.insert(Named::Item(of));
                        }
                        next.extend(found);
                    }
                }
            }
            // What is named within an item is defined where the item is.
            if next.is_empty() {
                named.retain(|one| matches!(one, Named::Item(_)));
                return named;
            }
            (named, rest) = (next.into_iter().collect(), behind);
        }
        named
    }

    /// What a name means in a module: what it defines, imports, or takes from everything of another.
    fn in_scope(&self, module: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Vec<Named> {
        let Module { children, written, .. } = &self.modules[module];
        let mut found: BTreeSet<Named> = children.get(name).map(|child| Named::Module(*child)).into_iter().collect();
        if written.items.contains(name) || written.macros.iter().any(|(of, _)| of == name) {
            found.insert(Named::Item(module));
        }
        // Of `use plan::plan` the first is the module: imports do not explain themselves.
        if !seen.insert((module, name.to_owned())) {
            return found.into_iter().collect();
        }
        if module == 0 {
            let exported = |id: &usize| self.modules[*id].written.macros.contains(&(name.to_owned(), true));
            found.extend((0..self.modules.len()).filter(exported).map(Named::Item));
        }
        for import in written.imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
            found.extend(self.named(module, &import.path, seen));
        }
        if found.is_empty() {
            for import in written.imports.iter().filter(|import| import.glob) {
                for of in self.named(module, &import.path, seen) {
                    if let Named::Module(of) = of {
                        found.extend(self.in_scope(of, name, seen));
                    }
                }
            }
        }
        seen.remove(&(module, name.to_owned()));
        found.into_iter().collect()
    }

    /// The files that define a macro that a module calls by its name; the order of files brings some of them into scope.
    pub(super) fn macro_files(&self, module: usize, name: &str) -> BTreeSet<&Path> {
        let found = self.files(module, &[name.to_owned()]);
        if !found.is_empty() {
            return found;
        }
        let defines = |module: &&Module| module.written.macros.iter().any(|(of, _)| of == name);
        let all: BTreeSet<&Path> = self.modules.iter().filter(defines).map(|module| module.file.as_path()).collect();
        if all.len() == 1 { all } else { BTreeSet::new() }
    }
}

/// A path without `..`, so that a file has one name.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

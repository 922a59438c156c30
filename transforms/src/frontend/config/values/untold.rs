//! Which keys do not tell what they would.

use serde_json::Map;

use super::{Values, is_stated};
use crate::frontend::FrontendError;
use crate::frontend::config::expr::Expr;
use crate::near::near;

impl Values<'_> {
    /// Those of the keys that are not there, and those that are and say nothing for the layer, such as a null.
    fn untold(&self, keys: &[&str], layer: u32) -> (Vec<String>, Vec<String>) {
        let (mut absent, mut unsaid) = (Vec::new(), Vec::new());
        // A key may tell several dimensions.
        for (_, key) in keys.iter().enumerate().filter(|(at, key)| !keys[..*at].contains(key)) {
            match self.value_at(key, layer) {
                Ok(None) => absent.push(format!("`{key}`")),
                Ok(Some(value)) if !is_stated(value) => unsaid.push(format!("`{key}` is {value}")),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        (absent, unsaid)
    }

    /// Which of the keys do not tell what they would.
    pub(in crate::frontend::config) fn lacking(&self, keys: &[&str], layer: u32) -> String {
        let (absent, mut untold) = self.untold(keys, layer);
        if !absent.is_empty() {
            untold.push(format!("{} is missing", absent.join(" or ")));
        }
        untold.join(" and ")
    }

    /// Which of the keys that would tell the size of `what` do not.
    pub(in crate::frontend::config) fn absent(&self, what: &str, keys: &[&str], layer: u32) -> String {
        match self.lacking(keys, layer) {
            untold if untold.is_empty() => format!("the size of {what} makes no sense"),
            untold => format!("{untold}, which tells the size of {what}"),
        }
    }

    pub(in crate::frontend::config) fn missing(&self, what: &str, expr: Option<&Expr>, layer: u32) -> FrontendError {
        self.none_of(what, &expr.iter().flat_map(|expr| expr.keys()).collect::<Vec<_>>(), layer)
    }

    /// Says of the keys that would tell what is sought that they do not.
    pub(in crate::frontend::config) fn none_of(&self, what: &str, keys: &[&str], layer: u32) -> FrontendError {
        let (mut absent, unsaid) = self.untold(keys, layer);
        if absent.is_empty() && unsaid.is_empty() {
            absent = keys.iter().map(|key| format!("`{key}`")).collect();
        }
        let there: Vec<String> = self.paths().collect();
        let near = keys.iter().map(|key| near(key, there.iter().map(String::as_str)));
        let near: Vec<String> = near.filter(|near| !near.is_empty() && !absent.is_empty()).collect();
        FrontendError::Missing {
            file: self.file.into(),
            model_type: self.model_type.clone(),
            what: what.into(),
            keys: absent.join(", ").into(),
            unsaid: unsaid.join(", ").into(),
            near: near.join(", ").into(),
        }
    }

    /// The keys that there are, those inside of objects with a dot.
    fn paths(&self) -> impl Iterator<Item = String> {
        self.map.iter().flat_map(|(key, value)| {
            let inner = value.as_object().into_iter().flat_map(Map::keys).map(move |inner| format!("{key}.{inner}"));
            std::iter::once(key.clone()).chain(inner)
        })
    }
}

//! What is said of a key of a config that nothing reads: in a description of the caller's, where the fault may be.

use super::description::Description;
use super::expr::Expr;
use super::values::Values;
use crate::frontend::{DescriptionPlace, FrontendError};
use crate::near::near;

/// A key of a config that nobody says the meaning of: who describes the model is told what to change in the description.
pub(super) fn not_said(description: &Description, values: &Values<'_>, key: &str) -> FrontendError {
    if !description.custom {
        return values.not_covered(&[key], "nothing says which caches that means");
    }
    misnamed(description, values, key).unwrap_or_else(|| {
        let reason = format!(
            "nothing in it reads `{key}` of {}, which could say what is cached; read it in an expression, or name it in \
             `ignores` if it says nothing",
            values.file
        );
        let place = DescriptionPlace::of(if description.ignores.is_empty() { &[] } else { &["ignores"] });
        FrontendError::Description { model_type: values.model_type.clone(), place: Box::new(place), reason }
    })
}

/// An expression of the caller's with a key that is not there, for which the unread one may be meant.
pub(super) fn misnamed(description: &Description, values: &Values<'_>, unread: &str) -> Option<FrontendError> {
    let is_there = |key: &str| values.get(key).is_some() || values.defaults.contains_key(key);
    let mut expressions = description.expressions().filter(|_| description.custom);
    expressions.find_map(|(path, text)| {
        let expr = Expr::parse(text).ok()?;
        let meant = |key: &&str| !is_there(key) && !near(key, [unread]).is_empty();
        let key = expr.keys().into_iter().find(meant)?;
        Some(values.none_of(&path.join("."), &[key], 0))
    })
}

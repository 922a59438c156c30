//! What the engines' own parsers take, and what it says of caches.

mod elsewhere;
pub(crate) mod fields;
pub(crate) mod meaning;
pub(crate) mod parse;
pub(crate) mod python;
pub(crate) mod si;
pub(crate) mod table;
pub(crate) mod values;

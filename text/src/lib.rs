//! Text in and text out: what a folder's tokenizer and chat template make of it. Knows no model and no device.
//!
//! [`Tokenizer`] turns text into token ids, [`ChatTemplate`] a conversation into the text of a prompt, and
//! [`TextStream`] tokens back into text while they come.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod error;
mod guarded;
mod patterns;
mod pieces;
mod pre;
mod stop;
mod stream;
mod template;
mod to_json;
mod tokenizer;
mod vocabulary;

pub use error::TextError;
pub use stream::TextStream;
pub use template::{ChatTemplate, Message, TemplateSource};
pub use tokenizer::Tokenizer;

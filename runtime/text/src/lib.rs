//! Turns text into tokens and tokens into text, by a model's own tokenizer and chat template.
//!
//! [`Tokenizer`] turns text into token ids, [`ChatTemplate`] a conversation into the text of a prompt, and
//! [`TextStream`] tokens back into text while they come. It knows no model and no device.
//!
//! ```
//! use cacheplan_text::{ChatTemplate, Message, TemplateSource};
//!
//! let text = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}".into();
//! let template = ChatTemplate::from_source(TemplateSource { file: "made up".into(), text, special: Default::default() })?;
//! assert_eq!(template.render(&[Message::new("user", "Hello")])?, "<user>Hello");
//! # Ok::<(), cacheplan_text::TextError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod error;
mod guarded;
mod jinja;
mod patterns;
mod pieces;
mod pre;
mod python;
mod stop;
mod stream;
mod syntax;
mod template;
mod tokenizer;
mod vocabulary;

pub use error::TextError;
pub use stop::{Piece, no_stop};
pub use stream::TextStream;
pub use template::{ChatTemplate, Message, TemplateSource};
pub use tokenizer::Tokenizer;

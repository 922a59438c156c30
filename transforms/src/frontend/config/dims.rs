//! The dimensions of a block in one layer, as the config tells them.

use std::cell::RefCell;

use cacheplan_files::Shown;
use cacheplan_handlers::DType;

use super::expr::Expr;
use super::values::{Number, Values};
use crate::builder::{Entries, GraphBuilder};
use crate::frontend::{DescriptionPlace, FrontendError};
use crate::model::Fact;
use crate::near::{Near, near};

/// The dimensions of one block in one layer.
pub(super) struct Dims<'a> {
    /// What the description calls the block.
    pub(super) block: &'a str,
    /// What tells each of them.
    pub(super) exprs: &'a [(&'static str, Expr)],
    /// The names of its caches' dtype, or keys that state one, in turn.
    pub(super) dtype: &'a [String],
    pub(super) values: &'a Values<'a>,
    pub(super) context: LayerContext<'a>,
}

/// What a block must know of the layer that it is added to.
#[derive(Clone, Copy)]
pub(super) struct LayerContext<'a> {
    /// The absolute layer.
    pub(super) layer: u32,
    /// How many layers there are.
    pub(super) layers: u32,
    /// Where its dimensions are written down, if it is the first layer of its kind.
    pub(super) notes: Option<&'a RefCell<Vec<Fact>>>,
    /// The layer whose keys and values it reads.
    pub(super) shares_layer: Option<u32>,
    /// The element types that the model states for states and for keys.
    pub(super) dtypes: [Option<DType>; 2],
}

impl Dims<'_> {
    pub(super) fn expr(&self, dim: &str) -> Option<&Expr> {
        self.exprs.iter().find(|(name, _)| *name == dim).map(|(_, expr)| expr)
    }

    /// A dimension that the block may do without.
    pub(super) fn find(&self, dim: &str) -> Result<Option<u64>, FrontendError> {
        Ok(self.number(dim)?.map(|number| number.value))
    }

    pub(super) fn number(&self, dim: &str) -> Result<Option<Number<'_>>, FrontendError> {
        let Some(expr) = self.expr(dim) else { return Ok(None) };
        let number = self.values.eval(expr, self.context.layer)?;
        if let Some(number) = &number {
            self.values.check_count(dim, number)?;
        }
        if let (Some(notes), Some(number)) = (self.context.notes, &number) {
            let fact = self.values.remember(&format!("{}.{dim}", self.block), number);
            let mut notes = notes.borrow_mut();
            if !notes.contains(&fact) {
                notes.push(fact);
            }
        }
        Ok(number)
    }

    /// Writes down what nothing states.
    pub(super) fn assume(&self, what: &str, value: &str) {
        self.assume_by(what, value, "the architecture's default");
    }

    fn assume_by(&self, what: &str, value: &str, from: &str) {
        if self.context.notes.is_some() {
            self.values.note(format!("{}.{what}", self.block), &value, from, true);
        }
    }

    /// What its caches are called: as the description calls the block.
    pub(super) fn suffix(&self) -> String {
        self.block.to_owned()
    }

    /// The dtype that the description states for the block's caches, if it does.
    pub(super) fn stated_dtype(&self) -> Result<Option<DType>, FrontendError> {
        for (at, word) in self.dtype.iter().enumerate() {
            if let Ok(dtype) = word.parse::<DType>() {
                if at > 0 {
                    let absent = self.dtype[..at].join("`, `");
                    self.assume_by("dtype", dtype.name(), &format!("the description, as `{absent}` is not there"));
                }
                return Ok(Some(dtype));
            }
            if let Some((dtype, _)) = self.values.dtype(&[word])? {
                return Ok(Some(dtype));
            }
            if at + 1 == self.dtype.len() || is_nearly_a_dtype(word) {
                return Err(self.no_dtype(word));
            }
        }
        Ok(None)
    }

    /// A word that names no dtype, and no key either.
    fn no_dtype(&self, word: &str) -> FrontendError {
        let near = near(word, DType::ALL.into_iter().flat_map(DType::spellings));
        let would_do = if near.is_empty() { "; end with one such as `?? f32`" } else { "" };
        let (block, file) = (self.block, self.values.file);
        FrontendError::Description {
            model_type: self.values.model_type.clone(),
            place: Box::new(DescriptionPlace::of(&["blocks", block, "dtype"]).at(word)),
            reason: format!("block `{block}`: `{word}` is no dtype{}, and no key of {file}{would_do}", Near(&near)),
        }
    }

    /// The dtype that the model states for recurrent states, else the block's own.
    pub(super) fn state_dtype(&self) -> Result<Option<DType>, FrontendError> {
        Ok(self.context.dtypes[0].or(self.stated_dtype()?))
    }

    /// The dtype that the model states for keys, values and latents, else the block's own.
    pub(super) fn kv_dtype(&self) -> Result<Option<DType>, FrontendError> {
        Ok(self.context.dtypes[1].or(self.stated_dtype()?))
    }

    /// The earlier layer whose caches of such an op it reads instead of having its own; `part` tells them from others of
    /// that op which a layer may have.
    pub(super) fn owner(
        &self,
        builder: &GraphBuilder,
        op: &'static str,
        part: &str,
    ) -> Result<Option<u32>, FrontendError> {
        let Some(expr) = self.expr("shares_layer") else { return Ok(None) };
        let what = format!("{}.shares_layer", self.block);
        let number =
            self.number("shares_layer")?.ok_or_else(|| self.values.missing(&what, Some(expr), self.context.layer))?;
        let layer = u32::try_from(number.value).unwrap_or(u32::MAX);
        if layer == self.context.layer || builder.has(layer, op, part) {
            return Ok(Some(layer).filter(|&layer| layer != self.context.layer));
        }
        let block = self.block;
        let expected = format!("layer {} reads its `{block}`, of which that layer has none", self.context.layer);
        Err(self.values.bad_number(&what, &number, &expected))
    }

    /// Entries of so many tokens each, its own or those of an earlier layer, which must be alike.
    pub(super) fn entries(
        &self,
        builder: &GraphBuilder,
        (op, part): (&'static str, &str),
        width: &'static str,
        dtype: Option<DType>,
    ) -> Result<Entries, FrontendError> {
        let shares_layer = self.owner(builder, op, part)?;
        let (width, stride) = (self.get(width)?, self.get("stride")?);
        if let Some((owner, number)) = shares_layer.zip(self.number("stride")?)
            && let Some(theirs) = builder.stride_of(owner, op, part).filter(|&theirs| theirs != stride)
        {
            let expected = format!("layer {owner}, whose `{}` it reads, has one for {theirs} tokens", self.block);
            return Err(self.values.bad_number("stride", &number, &expected));
        }
        Ok(Entries { width, stride, window: None, dtype, shares_layer })
    }

    /// A window that the block may do without.
    pub(super) fn window(&self) -> Result<Option<u64>, FrontendError> {
        match self.number("window")? {
            Some(window) if window.value == 0 => {
                Err(self.values.bad_number("window", &window, "at least 1 was expected"))
            }
            window => Ok(window.map(|window| window.value)),
        }
    }

    /// A number that the block cannot do without, and that may be 0.
    pub(super) fn count(&self, dim: &str) -> Result<u64, FrontendError> {
        self.find(dim)?.ok_or_else(|| self.missing(dim))
    }

    /// A dimension that the block cannot do without.
    pub(super) fn get(&self, dim: &str) -> Result<u64, FrontendError> {
        match self.number(dim)? {
            Some(number) if number.value > 0 => Ok(number.value),
            Some(number) => Err(self.values.bad_number(dim, &number, "at least 1 was expected")),
            None => Err(self.missing(dim)),
        }
    }

    fn missing(&self, dim: &str) -> FrontendError {
        self.values.missing(&format!("{}.{dim}", self.block), self.expr(dim), self.context.layer)
    }
}

/// Whether a word that is no key of the config is rather a dtype misspelt, or one that there is none of, than a key that is left
/// out: letters with a number as dtypes have them.
fn is_nearly_a_dtype(word: &str) -> bool {
    fn letters(name: &str) -> Option<&str> {
        name.find(|letter: char| letter.is_ascii_digit()).map(|at| &name[..at])
    }
    let known = || DType::ALL.into_iter().flat_map(DType::spellings);
    let word = word.strip_prefix("torch.").unwrap_or(word).to_ascii_lowercase();
    let own = letters(&word);
    Shown(&*word).nearest(known()).is_some() || own.is_some_and(|own| known().any(|name| letters(name) == Some(own)))
}

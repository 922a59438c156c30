//! A block as a description has it: its kind, with expressions of its own in place of the usual ones.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::blocks::{Schema, schema};
use super::dims::{Dims, LayerContext};
use super::expr::Expr;
use super::layers::check_lists;
use super::values::Values;
use crate::builder::GraphBuilder;
use crate::frontend::FrontendError;

/// The most runs of layers in one step that are read, over all layers.
const MAX_RUNS: u64 = 4_096;

/// A block of a description, ready to be added to layers.
pub(super) struct Block {
    /// What the description calls it.
    name: String,
    schema: &'static Schema,
    dims: Vec<(&'static str, Expr)>,
    more: Expr,
    /// Those that flags add.
    bias: Expr,
    /// The same of weights that ranks divide with the mixer.
    divided: Option<Expr>,
    /// All weights besides `more` and a convolution, where they are not those of the usual matrices.
    weights: Option<Expr>,
    /// How many layers have weights of their own; the layers behind use theirs.
    sets: Option<Expr>,
    /// How many layers have had it.
    seen: Cell<u64>,
    /// Whether a layer of the kind has it.
    when: Option<Expr>,
    /// How often it runs in a step, each time with caches of its own.
    times: Option<Expr>,
    /// How often its layer ran before it, with the same weights.
    after: Option<Expr>,
    /// The names of its caches' dtype, or keys that state one, in turn.
    dtype: Vec<String>,
}

impl Block {
    /// The block called `name`, with the expressions of a description in place of the usual ones.
    ///
    /// Errors are reasons for a wrong description.
    pub(super) fn new(name: &str, overrides: Option<&BTreeMap<String, String>>) -> Result<Self, String> {
        if let Some((_, _, why)) = fault(name, overrides) {
            return Err(why);
        }
        let schema = schema(base(name, overrides))?;
        let mut dims = Vec::with_capacity(schema.dims.len());
        for &(dim, usual) in schema.dims {
            let text = overrides.and_then(|table| table.get(dim)).map_or(usual, String::as_str);
            if !text.is_empty() {
                dims.push((dim, Expr::parse(text)?));
            }
        }
        let stated = |key: &str| overrides.and_then(|table| table.get(key)).map(String::as_str);
        let of_dims = |text: &str| {
            let expr = Expr::parse(text)?;
            Ok::<_, String>(expr.with(&|key| dims.iter().find(|(dim, _)| *dim == key).map(|(_, expr)| expr)))
        };
        let more = of_dims(stated("more").unwrap_or(schema.more))?;
        let speaks_of_biases = stated("more").is_some_and(|more| more.contains("bias"));
        let bias = of_dims(stated("bias").unwrap_or(if speaks_of_biases { "0" } else { schema.bias }))?;
        let usual = if stated("more").is_some() { "" } else { schema.divided };
        let divided =
            Some(stated("divided").unwrap_or(usual)).filter(|text| !text.is_empty()).map(of_dims).transpose()?;
        let weights = stated("weights").map(of_dims).transpose()?;
        let parsed = ["sets", "when", "times", "after"].map(|key| stated(key).map(Expr::parse).transpose());
        let [sets, when, times, after] = parsed;
        let (sets, when, times, after) = (sets?, when?, times?, after?);
        let dtype = stated("dtype").into_iter().flat_map(|words| words.split("??"));
        let dtype = dtype.map(|word| word.trim().to_owned()).collect();
        let (name, seen) = (name.to_owned(), Cell::new(0));
        Ok(Self { name, schema, dims, more, bias, divided, weights, sets, seen, when, times, after, dtype })
    }

    /// What tells its dimensions, and whether and how often it is there.
    pub(super) fn dims(&self) -> impl Iterator<Item = &Expr> {
        let own = self.dims.iter().map(|(_, expr)| expr);
        own.chain(&self.when).chain(&self.times).chain(&self.after)
    }

    /// The keys under which its dtype may be stated, and names of dtypes.
    pub(super) fn dtype_keys(&self) -> impl Iterator<Item = &str> {
        self.dtype.iter().map(String::as_str)
    }

    /// Refuses lists that name layers which there are not.
    pub(super) fn check_lists(&self, values: &Values<'_>, layers: u32) -> Result<(), FrontendError> {
        self.dims().try_for_each(|expr| check_lists(expr, values, layers))
    }

    /// Adds the block to the builder's current layer.
    pub(super) fn emit(
        &self,
        builder: &mut GraphBuilder,
        values: &Values<'_>,
        context: LayerContext<'_>,
    ) -> Result<(), FrontendError> {
        let dims = Dims { block: &self.name, exprs: &self.dims, dtype: &self.dtype, values, context };
        if let Some(when) = &self.when
            && values.eval(when, context.layer)?.is_none_or(|number| number.value == 0)
        {
            return Ok(());
        }
        let again = self.is_seen_in_full(values, context.layer)?;
        builder.count_elsewhere(again || self.weights.is_some());
        for run in self.runs(values, &context)? {
            builder.run(run);
            let emitted = (self.schema.emit)(builder, &dims);
            builder.run(0);
            emitted?;
        }
        builder.count_elsewhere(false);
        if again || self.after.is_some() {
            return Ok(());
        }
        // Biases that no flag adds need no size.
        let biases = Some(&self.bias).filter(|_| self.has_biases(values, context.layer));
        let more = std::iter::once(&self.more).chain(biases).map(|more| (self.schema.more_part, more));
        let matrices = self.weights.iter().chain(&self.divided).map(|matrices| ("mixer.divided", matrices));
        for (part, expr) in more.chain(matrices) {
            // It serves the estimate of the weights only, so that no model is refused for it.
            match values.eval(expr, context.layer) {
                Ok(Some(number)) => builder.more_weights(part, number.value),
                Ok(None) => {
                    let what = format!("the block `{}`", self.name);
                    builder.forget_weights(|| values.absent(&what, &expr.keys(), context.layer));
                }
                Err(error) => builder.forget_weights(|| error.to_string()),
            }
        }
        Ok(())
    }

    /// Whether its biases can be told, or a flag that adds some is on although they cannot.
    fn has_biases(&self, values: &Values<'_>, layer: u32) -> bool {
        let is_on = |key: &str| match values.eval(&Expr::Key(key.to_owned()), layer) {
            Ok(flag) => flag.is_some_and(|flag| flag.value > 0),
            Err(_) => true,
        };
        let mut flags = self.bias.keys().into_iter().filter(|key| key.contains("bias"));
        values.eval(&self.bias, layer).is_ok_and(|bias| bias.is_some()) || flags.any(is_on)
    }

    /// Whether as many layers had it as have weights of their own.
    fn is_seen_in_full(&self, values: &Values<'_>, layer: u32) -> Result<bool, FrontendError> {
        let sets = self.sets.as_ref().map(|sets| values.eval(sets, layer)).transpose()?.flatten();
        let seen = self.seen.replace(self.seen.get() + 1);
        Ok(sets.is_some_and(|sets| sets.value <= seen))
    }

    /// The runs of the block in one step; a layer that does not loop has one.
    fn runs(&self, values: &Values<'_>, context: &LayerContext<'_>) -> Result<std::ops::Range<u64>, FrontendError> {
        let eval = |expr: &'_ Option<Expr>| match expr {
            Some(expr) => values.eval(expr, context.layer).map(|number| number.map(|number| number.value)),
            None => Ok(None),
        };
        let after = eval(&self.after)?.unwrap_or(0);
        let Some(expr) = &self.times else { return Ok(after..after + 1) };
        let Some(times) = values.eval(expr, context.layer)? else {
            return Err(values.missing(&format!("{}.times", self.name), Some(expr), context.layer));
        };
        values.check_count("times", &times)?;
        if times.value == 0 && after == 0 {
            return Err(values.bad_number("times", &times, "at least 1 was expected"));
        }
        let all = times.value.saturating_add(after).saturating_mul(context.layers.into());
        if all > MAX_RUNS {
            let expected = format!("at most {MAX_RUNS} runs of layers in a step are read");
            return Err(values.bad_number("times", &times, &expected));
        }
        Ok(after..after + times.value)
    }
}

/// The kind of block that it is.
fn base<'a>(name: &'a str, overrides: Option<&'a BTreeMap<String, String>>) -> &'a str {
    overrides.and_then(|table| table.get("block")).map_or(name, String::as_str)
}

/// The key of a block that is wrong, the word of its value that is, if the key itself is not, and why; no key where its name
/// is.
pub(super) fn fault<'a>(
    name: &str,
    overrides: Option<&'a BTreeMap<String, String>>,
) -> Option<(Option<&'a str>, &'a str, String)> {
    let stated = || overrides.into_iter().flatten().map(|(key, text)| (key.as_str(), text.as_str()));
    let schema = match schema(base(name, overrides)) {
        Ok(schema) => schema,
        Err(why) => {
            let (key, word) = stated().find(|(key, _)| *key == "block").unzip();
            return Some((key, word.unwrap_or_default(), why));
        }
    };
    if let Some((key, _)) = stated().find(|(key, _)| !schema.has(key)) {
        return Some((Some(key), "", schema.lacks(name, key)));
    }
    let mut expressions = stated().filter(|(key, text)| !matches!(*key, "block" | "dtype") && !text.is_empty());
    expressions.find_map(|(key, text)| Some((Some(key), text, Expr::parse(text).err()?)))
}

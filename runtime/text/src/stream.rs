//! Tokens to text while they come: no character is cut, nothing of a stop string is let out.

use crate::error::TextError;
use crate::stop::{Piece, StopStrings};
use crate::tokenizer::Tokenizer;

/// Tokens of the prompt that the first ones are decoded behind: some decoders drop a space at the very beginning.
const BEFORE: usize = 6;

/// The most tokens that are held back for the end of a character. One takes at most four bytes; what is still none
/// after twice as many tokens never will be.
const HELD: usize = 8;

/// Text of one sequence, as its tokens come.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    /// Decoding starts here: far enough back that what was let out stays as it is.
    from: usize,
    /// The tokens before this one were let out.
    out: usize,
    stop: StopStrings,
}

impl<'a> TextStream<'a> {
    /// The text that follows `prompt`, up to the first of the strings that stop it; empty ones stop nothing.
    pub fn new(tokenizer: &'a Tokenizer, prompt: &[u32], stop: Vec<String>) -> Self {
        // A token may begin within a character; one of a few in a row does not.
        let tails = (BEFORE..BEFORE + 4).map(|back| &prompt[prompt.len().saturating_sub(back)..]);
        let whole = |tail: &&[u32]| {
            let text = tokenizer.decode(tail);
            text.is_ok_and(|text| !text.contains(char::REPLACEMENT_CHARACTER))
        };
        let mut clean = tails.clone().filter(whole);
        let tokens = clean.next().unwrap_or(&prompt[prompt.len().saturating_sub(BEFORE)..]).to_vec();
        let out = tokens.len();
        Self { tokenizer, tokens, from: 0, out, stop: StopStrings::new(stop) }
    }

    /// The next token.
    ///
    /// # Errors
    /// A token that the tokenizer refuses.
    pub fn push(&mut self, token: u32) -> Result<Piece, TextError> {
        self.tokens.push(token);
        let text = self.decoded()?;
        Ok(self.stop.push(&text))
    }

    /// What was held back: there are no more tokens.
    ///
    /// # Errors
    /// Tokens that the tokenizer refuses.
    pub fn finish(&mut self) -> Result<String, TextError> {
        let text = self.rest()?;
        let Piece { text, stopped } = self.stop.push(&text);
        Ok(if stopped { text } else { text + &self.stop.finish() })
    }

    /// The text of the tokens since the last that was let out, if it ends with a whole character.
    fn decoded(&mut self) -> Result<String, TextError> {
        let (before, after) = self.around()?;
        let new = match after.strip_prefix(before.as_str()) {
            Some(new) if !new.is_empty() && !new.ends_with(char::REPLACEMENT_CHARACTER) => new.to_owned(),
            _ if self.tokens.len() - self.out > HELD => return self.rest(),
            _ => return Ok(String::new()),
        };
        self.from = self.out;
        self.forget();
        Ok(new)
    }

    /// The text of all that was not let out, whatever it is.
    fn rest(&mut self) -> Result<String, TextError> {
        let (before, after) = self.around()?;
        if let Some(new) = after.strip_prefix(before.as_str()) {
            // Nothing, or no character: what comes is decoded behind what was one, whose words it goes on with.
            self.tokens.truncate(self.out);
            return Ok(new.to_owned());
        }
        let new = self.tokenizer.decode(&self.tokens[self.out..])?;
        self.from = self.tokens.len();
        self.forget();
        Ok(new)
    }

    fn around(&self) -> Result<(String, String), TextError> {
        let mut before = self.tokenizer.decode(&self.tokens[self.from..self.out])?;
        // A prompt may end within a character; then its first bytes come out with the rest of it.
        before.truncate(before.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        Ok((before, self.tokenizer.decode(&self.tokens[self.from..])?))
    }

    /// Everything is let out; what lies before `from` is not looked at again.
    fn forget(&mut self) {
        self.tokens.drain(..self.from);
        self.from = 0;
        self.out = self.tokens.len();
    }
}

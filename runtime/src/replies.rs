//! The text of requests while they are served.

use cacheplan_text::{TextError, TextStream};

use crate::follow::{Admission, Follow};
use crate::request::Output;

/// Something about the request at a place.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// Its text goes on with this.
    Piece(&'a str),
    /// It has ended with this text, if it has any.
    Done(Option<&'a str>, &'a Output),
}

/// Turns tokens into text while they come, and ends a request at its stop strings.
pub struct Replies<'a> {
    streams: Vec<Option<Stream<'a>>>,
    /// Tokens that end texts, and are no part of them.
    eos: &'a [u32],
    admission: &'a mut dyn FnMut() -> Admission,
    told: &'a mut dyn FnMut(usize, Reply<'_>) -> bool,
    given_up: bool,
    failed: Option<TextError>,
}

/// A request's text so far.
struct Stream<'a> {
    stream: TextStream<'a>,
    text: String,
    stopped: bool,
}

impl std::fmt::Debug for Replies<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replies").field("requests", &self.streams.len()).finish_non_exhaustive()
    }
}

impl<'a> Replies<'a> {
    /// For requests with these streams, `None` for one that has no text.
    ///
    /// `told` hears everything; false gives up the run. `admission` is asked as [`Follow::admission`] is.
    pub fn new(
        streams: impl IntoIterator<Item = Option<TextStream<'a>>>,
        eos: &'a [u32],
        admission: &'a mut dyn FnMut() -> Admission,
        told: &'a mut dyn FnMut(usize, Reply<'_>) -> bool,
    ) -> Self {
        let stream = |stream| Stream { stream, text: String::new(), stopped: false };
        let streams = streams.into_iter().map(|given: Option<TextStream<'a>>| given.map(stream)).collect();
        Self { streams, eos, admission, told, given_up: false, failed: None }
    }

    /// The texts, once all is served.
    ///
    /// # Errors
    /// Tokens that a tokenizer refused.
    pub fn into_texts(self) -> Result<Vec<Option<String>>, TextError> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.streams.into_iter().map(|stream| Some(stream?.text)).collect()),
        }
    }

    fn tell(&mut self, place: usize, text: &str) {
        if !text.is_empty() && !(self.told)(place, Reply::Piece(text)) {
            self.given_up = true;
        }
    }

    /// Ends the request alone; the others go on.
    fn fail(&mut self, error: TextError) {
        self.failed.get_or_insert(error);
    }
}

impl Follow for Replies<'_> {
    fn admission(&mut self) -> Admission {
        if self.given_up { Admission::Abandoned } else { (self.admission)() }
    }

    fn token(&mut self, place: usize, token: u32) -> bool {
        let Some(stream) = self.streams[place].as_mut().filter(|_| !self.eos.contains(&token)) else { return true };
        match stream.stream.push(token) {
            Ok(piece) => {
                stream.text += &piece.text;
                stream.stopped = piece.stopped;
                self.tell(place, &piece.text);
                !piece.stopped
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    fn finished(&mut self, place: usize, output: &Output) {
        if let Some(stream) = self.streams[place].as_mut().filter(|stream| !stream.stopped) {
            match stream.stream.finish() {
                Ok(rest) => {
                    stream.text += &rest;
                    self.tell(place, &rest);
                }
                Err(error) => self.fail(error),
            }
        }
        let text = self.streams[place].as_ref().map(|stream| stream.text.as_str());
        if !(self.told)(place, Reply::Done(text, output)) {
            self.given_up = true;
        }
    }
}

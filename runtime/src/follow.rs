//! Whoever watches requests while they are served.

use crate::request::Output;

/// Watches requests while they are served, and may end them.
pub trait Follow {
    /// Asked before each step: whether requests are still taken in.
    fn admission(&mut self) -> Admission {
        Admission::Open
    }

    /// Asked before each step of every request that has begun, and before one begins: whether it is still wanted. False
    /// cancels it.
    fn wants(&mut self, place: usize) -> bool {
        let _ = place;
        true
    }

    /// A token was generated for the request at a place; whether it goes on. False makes it the last.
    fn token(&mut self, place: usize, token: u32) -> bool {
        let _ = (place, token);
        true
    }

    /// The request at a place has ended.
    fn finished(&mut self, place: usize, output: &Output) {
        let _ = (place, output);
    }
}

/// Whether requests are still taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// As they come.
    Open,
    /// No more of them; those that have begun are finished.
    Closed,
    /// What has begun is given up too.
    Abandoned,
}

/// Lets everything go on.
pub(crate) struct Nobody;

impl Follow for Nobody {}

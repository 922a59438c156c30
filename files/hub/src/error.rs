//! Why the hub did not say what a model is.

use cacheplan_files::{Shown, SourceError};
use thiserror::Error;

/// A model that is not on this disk, and that was not fetched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// Nothing may be fetched.
    #[error(
        "{name} is not in the hub's cache, and {why}; `hf download {name}` puts it there, for a plan its config.json is enough"
    )]
    Offline {
        /// The model.
        name: String,
        /// Who forbids it.
        why: &'static str,
    },
    /// An address that is not asked.
    #[error("{}: {} is not asked; an https address was expected, or http to this machine where HF_ENDPOINT says so", Shown(.from), Shown(.found))]
    Insecure {
        /// Who named the address: `HF_ENDPOINT`, or what was asked for.
        from: String,
        /// The address, without what stands behind `?`.
        found: String,
    },
    /// A token that no header can hold. It is not shown.
    #[error("{}: one line of visible ASCII characters was expected, as a token is", Shown(.from))]
    Token {
        /// The variable or file that it stands in.
        from: String,
    },
    /// A file of certificates that has none.
    #[error("{}: certificates in PEM were expected, each between `-----BEGIN CERTIFICATE-----` and its end", Shown(.from))]
    Certificates {
        /// The variable and the file.
        from: String,
    },
    /// A file that the settings name.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The hub wants to know who asks, or does not let them.
    #[error("{}: the hub answers {status}{}; the model is gated, private or not there; {what_would_do}", Shown(.url), Shown(.said))]
    Denied {
        /// What was asked for.
        url: String,
        /// 401 or 403.
        status: u16,
        /// What the hub says.
        said: String,
        /// What would do.
        what_would_do: &'static str,
    },
    /// There is no such model, revision or file.
    #[error("{}: there is no such model, revision or file{}", Shown(.url), Shown(.said))]
    NotFound {
        /// What was asked for.
        url: String,
        /// What the hub says.
        said: String,
    },
    /// Too many questions.
    #[error("{}: the hub answers 429, too many questions; ask again later{}, or with HF_TOKEN", Shown(.url), seconds(.wait))]
    TooMany {
        /// What was asked for.
        url: String,
        /// How many seconds it wants to be left alone, where that is more than is waited.
        wait: Option<u64>,
    },
    /// An answer that hardly comes.
    #[error("{}: {found} bytes came in {seconds} s; fewer than {least} bytes a second are not waited for; ask again later", Shown(.url))]
    TooSlow {
        /// What was asked for.
        url: String,
        /// Bytes that came.
        found: u64,
        /// In so many seconds.
        seconds: u64,
        /// The lowest rate.
        least: u64,
    },
    /// A model whose description does not come to an end.
    #[error("{}: what describes the model did not come within {seconds} s; ask again later", Shown(.url))]
    TooLate {
        /// What was asked for last.
        url: String,
        /// The time for all of it.
        seconds: u64,
    },
    /// Any other answer than the one that was expected.
    #[error("{}: the hub answers {status}{}", Shown(.url), Shown(.said))]
    Status {
        /// What was asked for.
        url: String,
        /// What came.
        status: u16,
        /// What the hub says.
        said: String,
    },
    /// An answer that leads on and on, or nowhere.
    #[error("{}: the answer leads {}; at most {most} steps are gone, each to an address", Shown(.url), Shown(.found))]
    Redirects {
        /// What was asked for.
        url: String,
        /// Where it leads.
        found: String,
        /// The most steps.
        most: usize,
    },
    /// More than is read of it.
    #[error("{}: {what} of more than {most} bytes is not read", Shown(.url))]
    TooLong {
        /// What was asked for.
        url: String,
        /// What it should be.
        what: &'static str,
        /// The most bytes.
        most: u64,
    },
    /// Fewer bytes than were announced.
    #[error("{}: truncated: {expected} bytes were announced, {found} came", Shown(.url))]
    Truncated {
        /// What was asked for.
        url: String,
        /// Bytes announced.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// A server that does not give a part of a file.
    #[error("{}: bytes {from} to {to} were asked for, {} came; the whole file is not read instead", Shown(.url), Shown(.found))]
    Range {
        /// What was asked for.
        url: String,
        /// The first byte.
        from: u64,
        /// The last byte.
        to: u64,
        /// What came.
        found: String,
    },
    /// Nothing came.
    #[error("{}: {}; without the hub, name a config.json that is on this disk", Shown(.url), Shown(.why))]
    Unreachable {
        /// What was asked for.
        url: String,
        /// Why.
        why: String,
    },
    /// An answer of the hub that is none.
    #[error("{}: {}", Shown(.url), Shown(.why))]
    Malformed {
        /// What was asked for.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// A repository without a config, or a file of a format whose description is not fetched.
    #[error("{name}: {}; {}", Shown(.found), Shown(.instead))]
    NoModel {
        /// The model.
        name: String,
        /// What is there.
        found: String,
        /// What would do.
        instead: String,
    },
}

fn seconds(wait: &Option<u64>) -> String {
    wait.map_or_else(String::new, |seconds| format!(" (in {seconds} seconds, it says)"))
}

impl HubError {
    /// Whether the same question may be answered a moment later.
    #[cfg(feature = "fetch")]
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::TooMany { wait: None, .. } | Self::Truncated { .. } | Self::Unreachable { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

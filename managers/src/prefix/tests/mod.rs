//! The prefix cache under [`PrefixReuse`](super::PrefixReuse), which no engine sees.

mod check;
mod inputs;
mod metrics;
mod oracle;
mod plan;
mod resend;

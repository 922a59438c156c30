//! Whose certificates are believed: those in the file that `SSL_CERT_FILE` names, as curl and Python read it, where there is
//! one, else those of Mozilla's list.

use std::ffi::OsString;
use std::path::PathBuf;

use cacheplan_files::{Limit, Source};
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

use crate::HubError;

const VARIABLE: &str = "SSL_CERT_FILE";
/// That of a whole system has some hundred KiB.
const CERTIFICATES: Limit = Limit { what: "a file of certificates", bytes: 8 << 20, per_value: 0 };

pub(crate) fn believed(variable: &impl Fn(&str) -> Option<OsString>) -> Result<RootCerts, HubError> {
    let Some(path) = variable(VARIABLE).map(PathBuf::from) else {
        return Ok(RootCerts::WebPki);
    };
    let file = Source::open(&path)?;
    let items: Result<Vec<PemItem<'_>>, _> = parse_pem(&file.bytes(CERTIFICATES)?).collect();
    let unread = || HubError::Certificates { from: format!("{VARIABLE}={}", path.display()) };
    let certificates: Vec<Certificate<'_>> = items
        .map_err(|_| unread())?
        .into_iter()
        .filter_map(|item| if let PemItem::Certificate(certificate) = item { Some(certificate) } else { None })
        .collect();
    if certificates.is_empty() { Err(unread()) } else { Ok(RootCerts::new_with_certs(&certificates)) }
}

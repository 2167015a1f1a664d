//! TLS: who may be believed, and who we are; and what an error of it means.
//!
//! It decides who may connect. What pages hold is kept from the server itself by their own seal.
//!
//! What it does not do: pre-shared keys, which rustls does not have. A local `stunnel` or `ssh -L` speaks for
//! us to a server that wants them.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};

use super::config::Tls;
use super::error::{NbdError, words};

/// Where systems keep the certificates that they trust.
const SYSTEM_CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// What a connection begins with.
#[derive(Clone)]
pub(super) struct Terms {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Terms {
    pub(super) fn of(tls: &Tls) -> Result<Terms, NbdError> {
        let name = ServerName::try_from(tls.name.clone())
            .map_err(|_| told(format!("no certificate is for {:?}: give ?tls-hostname=NAME", tls.name)))?;
        let mut trusted = RootCertStore::empty();
        match &tls.cacert {
            Some(path) => {
                for certificate in certificates(path)? {
                    trusted.add(certificate).map_err(|e| {
                        told(format!("{} is no authority's certificate ({e}): name another", path.display()))
                    })?;
                }
            }
            None => {
                let there = SYSTEM_CERTIFICATES.iter().map(Path::new).find(|path| path.exists());
                let there =
                    there.ok_or_else(|| told("no certificates are trusted here: give cacert=FILE".into()))?;
                trusted.add_parsable_certificates(certificates(there)?);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| told(e.to_string()))?
            .with_root_certificates(trusted);
        let config = match (&tls.cert, &tls.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let own = PrivateKeyDer::from_pem_file(key).map_err(|e| unread(key, &e))?;
                builder.with_client_auth_cert(certificates(cert)?, own).map_err(|e| {
                    let (cert, key) = (cert.display(), key.display());
                    told(format!("{cert} and {key} do not fit ({e}): name the key of the certificate"))
                })?
            }
            _ => return Err(told("cert= and key= are given together".into())),
        };
        Ok(Terms { config: Arc::new(config), name })
    }

    pub(super) fn begin(&self) -> Result<ClientConnection, NbdError> {
        ClientConnection::new(self.config.clone(), self.name.clone()).map_err(|e| meaning(&e))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NbdError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|e| unread(path, &e))?;
    if found.is_empty() {
        return Err(told(format!("{} holds no certificate in PEM form: name one that does", path.display())));
    }
    Ok(found)
}

fn unread(path: &Path, error: &pem::Error) -> NbdError {
    let why = match error {
        pem::Error::Io(error) => words(error),
        pem::Error::NoItemsFound => "there is none in it".to_owned(),
        other => other.to_string(),
    };
    told(format!("{} cannot be used, a certificate or key in PEM form is wanted: {why}", path.display()))
}

fn told(text: String) -> NbdError {
    NbdError::Certificate(text)
}

/// A server with TLS that hangs up as it learns who we are.
pub(super) fn no_reason() -> NbdError {
    told(NOT_ACCEPTED.into())
}

const NOT_ACCEPTED: &str =
    "the server does not accept us: give a certificate that it trusts with cert=FILE and key=FILE";

/// What an error of TLS means for whoever named the server.
pub(super) fn meaning(error: &Error) -> NbdError {
    use AlertDescription as Alert;
    told(match error {
        Error::InvalidCertificate(why) => format!("the server's certificate {}", fault_of(why)),
        Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::AccessDenied,
        ) => NOT_ACCEPTED.into(),
        Error::AlertReceived(Alert::HandshakeFailure) => {
            "the server and we know no way to encrypt in common: it may want a certificate (cert=FILE and \
             key=FILE), or a shared key (then by stunnel, and its socket here)"
                .into()
        }
        other => format!("no TLS with this server ({other}): let it offer TLS 1.2 or 1.3 by a certificate"),
    })
}

/// What is wrong with the server's certificate, and what mends that.
fn fault_of(why: &CertificateError) -> String {
    use CertificateError as Cert;
    match why {
        Cert::UnknownIssuer | Cert::BadSignature => {
            "is by nobody who is trusted here: name its authority, or itself if it is self-signed, with \
             cacert=FILE"
                .into()
        }
        Cert::NotValidForNameContext { expected, presented } => {
            let (wanted, has) = (expected.to_str(), presented.iter().map(|name| plain(name)));
            match has.collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => {
                    format!("names no host: give the server one for {wanted} (subjectAltName)")
                }
                names => format!(
                    "is for {names} and not for {wanted}: name the host so, or give ?tls-hostname=NAME after \
                     the address"
                ),
            }
        }
        Cert::Expired | Cert::ExpiredContext { .. } => "has expired: give the server a new one".into(),
        Cert::NotValidYet | Cert::NotValidYetContext { .. } => {
            "is not valid yet: set the clock here, or give the server another one".into()
        }
        Cert::InvalidPurpose | Cert::InvalidPurposeContext { .. } => {
            "is not for servers: give the server one with extendedKeyUsage=serverAuth".into()
        }
        // webpki's own words, which rustls does not have.
        other => match format!("{other:?}") {
            text if text.contains("CaUsedAsEndEntity") => {
                "is an authority's own (CA:TRUE), as openssl req -x509 makes it: give the server one with \
                 basicConstraints=CA:FALSE, and name that or its authority with cacert=FILE"
                    .into()
            }
            text if text.contains("UnsupportedCertVersion") => {
                "is of an old form: give the server one of version 3, with its host as subjectAltName".into()
            }
            _ => format!("cannot be used ({other}): give the server another one"),
        },
    }
}

/// The name alone, of `DnsName("name")` or `IpAddress(address)`.
fn plain(name: &str) -> &str {
    name.split_once('(').map_or(name, |(_, rest)| rest.trim_end_matches(')')).trim_matches('"')
}

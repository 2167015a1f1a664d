//! TLS: who may be believed, and who we are; and what an error of it means.
//!
//! It decides who may connect. What pages hold is kept from the server itself by their own seal.
//!
//! What it does not do: pre-shared keys, which rustls does not have. A local `stunnel` or `ssh -L` speaks for
//! us to a server that wants them.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};

use super::config::Tls;
use super::error::NbdError;

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
            .map_err(|_| told(format!("{:?} is not a name that a certificate can have", tls.name)))?;
        let mut trusted = RootCertStore::empty();
        match &tls.cacert {
            Some(path) => {
                for certificate in certificates(path)? {
                    trusted.add(certificate).map_err(|e| told(format!("{}: {e}", path.display())))?;
                }
            }
            None => {
                let there = SYSTEM_CERTIFICATES.iter().map(Path::new).find(|path| path.exists());
                let there =
                    there.ok_or_else(|| told("no certificates are trusted here: give cacert=".into()))?;
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
                builder
                    .with_client_auth_cert(certificates(cert)?, own)
                    .map_err(|e| told(format!("{} and {} do not fit: {e}", cert.display(), key.display())))?
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
        return Err(told(format!("{} holds no certificate in PEM form", path.display())));
    }
    Ok(found)
}

fn unread(path: &Path, error: &rustls::pki_types::pem::Error) -> NbdError {
    told(format!("{} cannot be used, a PEM file is wanted: {error}", path.display()))
}

fn told(text: String) -> NbdError {
    NbdError::Certificate(text)
}

/// A server with TLS that hangs up as it learns who we are.
pub(super) fn no_reason() -> NbdError {
    told(NOT_ACCEPTED.into())
}

const NOT_ACCEPTED: &str =
    "the server does not accept us: give a certificate that it trusts with cert= and key=";

/// What an error of TLS means for whoever named the server.
pub(super) fn meaning(error: &Error) -> NbdError {
    use AlertDescription as Alert;
    use CertificateError as Cert;
    told(match error {
        Error::InvalidCertificate(Cert::UnknownIssuer | Cert::BadSignature) => {
            "the server's certificate is by nobody who is trusted here: name its authority with cacert="
                .into()
        }
        Error::InvalidCertificate(Cert::NotValidForName | Cert::NotValidForNameContext { .. }) => {
            "the server's certificate is for another name: name the host as it does, or give tls-hostname="
                .into()
        }
        Error::InvalidCertificate(Cert::Expired | Cert::ExpiredContext { .. }) => {
            "the server's certificate has expired: give the server a new one".into()
        }
        Error::InvalidCertificate(why) => format!("the server's certificate is not valid: {why}"),
        Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::AccessDenied
            | Alert::HandshakeFailure,
        ) => NOT_ACCEPTED.into(),
        other => format!("no TLS with this server: {other}"),
    })
}

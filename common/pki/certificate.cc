#include "common/pki/certificate.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/id.h"
#include "common/base/status.h"

namespace sluice::pki {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, Deleter<X509_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Deleter<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Deleter<X509_STORE_CTX_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Deleter<GENERAL_NAMES_free>>;
using Number = std::unique_ptr<BIGNUM, Deleter<BN_free>>;
void FreeStack(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }
using Stack = std::unique_ptr<STACK_OF(X509), Deleter<FreeStack>>;

constexpr size_t kMaxNameBytes = 64;  // Of a common name, by RFC 5280.
constexpr size_t kMaxHostBytes = 253;
constexpr size_t kMaxUriBytes = 2048;  // Of a SPIFFE ID.

absl::Status BadPem(absl::string_view what) {
  // OpenSSL queues its errors per thread; a stale one would confuse the next caller who looks.
  ERR_clear_error();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_PEM",
               absl::StrCat("there is no readable ", what, " in this text; wanted: PEM"));
}

Bio BioOf(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

// A key with a passphrase is refused instead of asking on the terminal for it.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> ReadKey(absl::string_view pem) {
  Key key(PEM_read_bio_PrivateKey(BioOf(pem).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return BadPem("private key without a passphrase");
  return key;
}

// All certificates of the text, at least one.
absl::StatusOr<std::vector<X509Ptr>> ReadCertificates(absl::string_view pem) {
  std::vector<X509Ptr> certificates;
  const Bio bio = BioOf(pem);
  while (X509* const one = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr))
    certificates.emplace_back(one);

  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !at_end) return BadPem("certificate");
  return certificates;
}

Secret KeyText(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  SLUICE_CHECK(
      PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return Secret(TextOf(bio.get()));
}

std::string CertificateText(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  SLUICE_CHECK(PEM_write_bio_X509(bio.get(), certificate) == 1);
  return TextOf(bio.get());
}

bool IsIpAddress(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

bool IsDnsName(absl::string_view host) {
  constexpr absl::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.*";
  return !host.empty() && host.size() <= kMaxHostBytes &&
         host.find_first_not_of(kAllowed) == absl::string_view::npos;
}

absl::Status CheckSubject(const Subject& subject) {
  if (subject.name.empty() || subject.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the common name '", subject.name,
                                                   "' of a certificate has ", subject.name.size(),
                                                   " bytes; wanted: 1 to ", kMaxNameBytes));
  }
  // The alternative names are passed to OpenSSL as one text, in which a comma begins the next name.
  if (!absl::StrContains(subject.uri, "://") || subject.uri.size() > kMaxUriBytes ||
      subject.uri.find_first_of(", \n") != std::string::npos)
    return absl::InvalidArgumentError(
        absl::StrCat("'", subject.uri, "' is not a URI that a certificate can carry"));
  for (const std::string& host : subject.hosts) {
    if (!IsIpAddress(host) && !IsDnsName(host))
      return absl::InvalidArgumentError(
          absl::StrCat("the host '", host, "' is neither a DNS name nor an IP address"));
  }
  return absl::OkStatus();
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_nconf_nid(nullptr, &context, nid, value.c_str()));
  SLUICE_CHECK_MSG(extension != nullptr, value);
  SLUICE_CHECK(X509_add_ext(certificate, extension.get(), -1) == 1);
}

std::string AlternativeNames(const Subject& subject) {
  std::vector<std::string> names = {absl::StrCat("URI:", subject.uri)};
  for (const std::string& host : subject.hosts)
    names.push_back(absl::StrCat(IsIpAddress(host) ? "IP:" : "DNS:", host));
  return absl::StrJoin(names, ",");
}

void SetTime(ASN1_TIME* field, absl::Time time) {
  SLUICE_CHECK(ASN1_TIME_set(field, static_cast<time_t>(absl::ToUnixSeconds(time))) != nullptr);
}

absl::Time TimeOf(const ASN1_TIME* field) {
  std::tm parts = {};
  return ASN1_TIME_to_tm(field, &parts) == 1 ? absl::FromTM(parts, absl::UTCTimeZone())
                                             : absl::InfinitePast();
}

// A new certificate for `key`, complete but for its extensions and its signature.
X509Ptr MakeCertificate(const Subject& subject, const Validity& validity, EVP_PKEY* key) {
  X509Ptr certificate(X509_new());
  SLUICE_CHECK(certificate != nullptr);
  SLUICE_CHECK(X509_set_version(certificate.get(), X509_VERSION_3) == 1);

  // RFC 5280 asks for a positive serial number of at most 20 bytes.
  const Number serial(BN_new());
  SLUICE_CHECK(BN_rand(serial.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1);
  BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get()));

  SetTime(X509_getm_notBefore(certificate.get()), validity.from);
  SetTime(X509_getm_notAfter(certificate.get()), validity.until);
  X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate.get()), NID_commonName,
                             MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(subject.name.data()),
                             static_cast<int>(subject.name.size()), -1, 0);
  SLUICE_CHECK(X509_set_pubkey(certificate.get(), key) == 1);
  return certificate;
}

absl::Status CheckValidity(const Validity& validity) {
  if (validity.from < validity.until) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a certificate cannot be valid from ",
                                                 absl::FormatTime(validity.from), " until ",
                                                 absl::FormatTime(validity.until)));
}

bool BelongsTogether(X509* certificate, EVP_PKEY* key) {
  const bool same = X509_check_private_key(certificate, key) == 1;
  ERR_clear_error();
  return same;
}

Certificate Describe(X509* certificate) {
  Certificate result;
  result.is_authority = X509_check_ca(certificate) > 0;
  result.validity = {TimeOf(X509_get0_notBefore(certificate)),
                     TimeOf(X509_get0_notAfter(certificate))};
  const ASN1_INTEGER* const serial = X509_get0_serialNumber(certificate);
  result.serial =
      ToHex(absl::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(serial)),
                              static_cast<size_t>(ASN1_STRING_length(serial))));

  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof name);
  result.subject.name = name;

  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int type = 0;
    const auto* const value = static_cast<const ASN1_STRING*>(
        GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &type));
    if (type != GEN_URI && type != GEN_DNS && type != GEN_IPADD) continue;
    const std::string bytes(reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
                            static_cast<size_t>(ASN1_STRING_length(value)));
    if (type == GEN_URI) {
      result.subject.uri = bytes;
    } else if (type == GEN_DNS) {
      result.subject.hosts.push_back(bytes);
    } else {
      char text[INET6_ADDRSTRLEN] = "";
      inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
      result.subject.hosts.push_back(text);
    }
  }
  return result;
}

absl::Status ChainError(int error, const std::string& name) {
  const std::string who = absl::StrCat("the certificate of '", name, "' ");
  if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "EXPIRED", .hint = "issue a new one with `sluice pki issue`"},
                     absl::StrCat(who, "has expired"));
  }
  if (error == X509_V_ERR_CERT_NOT_YET_VALID) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "NOT_YET_VALID", .hint = "compare the clocks of the hosts"},
                     absl::StrCat(who, "is not valid yet"));
  }
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "UNTRUSTED",
                    .hint = "certificate and authority must come from the same `sluice pki init`"},
                   absl::StrCat(who, "is not trusted: ", X509_verify_cert_error_string(error)));
}

}  // namespace

absl::StatusOr<KeyPair> MakeAuthority(const Subject& subject, const Validity& validity) {
  SLUICE_RETURN_IF_ERROR(CheckSubject(subject));
  SLUICE_RETURN_IF_ERROR(CheckValidity(validity));
  const Key key(EVP_EC_gen("P-256"));
  SLUICE_CHECK(key != nullptr);

  const X509Ptr certificate = MakeCertificate(subject, validity, key.get());
  X509* const self = certificate.get();
  SLUICE_CHECK(X509_set_issuer_name(self, X509_get_subject_name(self)) == 1);
  AddExtension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(self, self, NID_subject_key_identifier, "hash");
  AddExtension(self, self, NID_subject_alt_name, AlternativeNames(subject));
  SLUICE_CHECK(X509_sign(self, key.get(), EVP_sha256()) > 0);
  return KeyPair{CertificateText(self), KeyText(key.get())};
}

absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority, const Subject& subject,
                                         const Validity& validity) {
  SLUICE_RETURN_IF_ERROR(CheckSubject(subject));
  SLUICE_RETURN_IF_ERROR(CheckValidity(validity));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain,
                          ReadCertificates(authority.certificate));
  SLUICE_ASSIGN_OR_RETURN(const Key authority_key, ReadKey(authority.key.Reveal()));
  X509* const issuer = chain.front().get();
  const Certificate about = Describe(issuer);
  if (!about.is_authority || !BelongsTogether(issuer, authority_key.get())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate of '", about.subject.name,
                     "' cannot sign others: it must be that of an authority, with its own key"));
  }
  // Certificates hold whole seconds.
  if (absl::ToUnixSeconds(validity.until) > absl::ToUnixSeconds(about.validity.until)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate would be valid until ", absl::FormatTime(validity.until),
                     ", but its authority is only until ", absl::FormatTime(about.validity.until)));
  }

  const Key key(EVP_EC_gen("P-256"));
  SLUICE_CHECK(key != nullptr);
  const X509Ptr certificate = MakeCertificate(subject, validity, key.get());
  X509* const self = certificate.get();
  SLUICE_CHECK(X509_set_issuer_name(self, X509_get_subject_name(issuer)) == 1);
  AddExtension(self, issuer, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(self, issuer, NID_key_usage, "critical,digitalSignature");
  AddExtension(self, issuer, NID_ext_key_usage, "serverAuth,clientAuth");
  AddExtension(self, issuer, NID_subject_key_identifier, "hash");
  AddExtension(self, issuer, NID_authority_key_identifier, "keyid");
  AddExtension(self, issuer, NID_subject_alt_name, AlternativeNames(subject));
  SLUICE_CHECK(X509_sign(self, authority_key.get(), EVP_sha256()) > 0);
  return KeyPair{CertificateText(self), KeyText(key.get())};
}

absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> certificates, ReadCertificates(pem));
  return Describe(certificates.front().get());
}

absl::Status CheckKeyPair(const KeyPair& pair, absl::string_view authority, absl::Time now) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, ReadCertificates(pair.certificate));
  SLUICE_ASSIGN_OR_RETURN(const Key key, ReadKey(pair.key.Reveal()));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities, ReadCertificates(authority));
  X509* const leaf = chain.front().get();
  if (!BelongsTogether(leaf, key.get())) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "KEY_MISMATCH", .hint = "issue certificate and key together"},
                     absl::StrCat("the key does not belong to the certificate of '",
                                  Describe(leaf).subject.name, "'"));
  }

  const StorePtr store(X509_STORE_new());
  for (const X509Ptr& trusted : authorities) X509_STORE_add_cert(store.get(), trusted.get());
  const Stack intermediates(sk_X509_new_null());
  for (size_t i = 1; i < chain.size(); ++i) {
    X509_up_ref(chain[i].get());
    sk_X509_push(intermediates.get(), chain[i].get());
  }
  const StoreContext context(X509_STORE_CTX_new());
  SLUICE_CHECK(X509_STORE_CTX_init(context.get(), store.get(), leaf, intermediates.get()) == 1);
  X509_STORE_CTX_set_time(context.get(), 0, static_cast<time_t>(absl::ToUnixSeconds(now)));
  const bool trusted = X509_verify_cert(context.get()) == 1;
  ERR_clear_error();
  if (trusted) return absl::OkStatus();

  X509* const at_fault = X509_STORE_CTX_get_current_cert(context.get());
  return ChainError(X509_STORE_CTX_get_error(context.get()),
                    Describe(at_fault != nullptr ? at_fault : leaf).subject.name);
}

}  // namespace sluice::pki

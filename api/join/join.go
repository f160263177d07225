// Package join is the contract by which a Mac joins a fleet: the token that an
// administrator carries to the Mac, and what agent and operator say to one
// another through a CertificateSigningRequest.
//
// It owns the names, the form of the token, the one form that a Mac's request
// for a certificate may have, and the envelope in which the Mac gets its first
// API token. It refuses a token that was cut off or changed, and a request that
// asks for anything but the server certificate of one Mac. It speaks to nobody.
//
// Start reading at Token, CheckRequest and Seal.
package join

import "crypto/x509/pkix"

// Signer is the signer name of requests for a Mac's certificate.
const Signer = "metalfleet.dev/agent"

// Organization is in the subject of each Mac's certificate, beside its name.
const Organization = "metalfleet.dev/macs"

// Account is the name of the ServiceAccount that a join token speaks for, and
// of the Secret that the token lives and dies with.
func Account(mac string) string { return "join-" + mac }

// RequestName is the name of the one CertificateSigningRequest that a
// ServiceAccount may have: rights can be given by name only.
func RequestName(account string) string { return "metalfleet-" + account }

// Keys of the Secret that a join token is bound to.
const (
	// KeyCredential holds the id of the one token that may be used.
	KeyCredential = "credential-id"
	// KeyExpires holds when it ends, as RFC 3339 has it.
	KeyExpires = "expires"
	// KeyRequest holds the UID of the request that used it; absent: unused.
	KeyRequest = "request-uid"
	// KeyAccess holds the Mac's first API token, sealed to the request's key.
	KeyAccess = "access"
)

// Reasons of the condition Denied or Failed of a request.
const (
	ReasonIssued        = "Issued"
	ReasonNotAMac       = "NotAMac"       // the requester is no Mac's account
	ReasonWrongName     = "WrongName"     // the request has not the name that this account may use
	ReasonNoMac         = "NoMac"         // there is no MacNode of that name, or it is being deleted
	ReasonOldAccount    = "OldAccount"    // the account was deleted since
	ReasonWrongRequest  = "WrongRequest"  // subject, names, key or usages are not those of this Mac
	ReasonTokenUsed     = "TokenUsed"     // another request has used the join token
	ReasonTokenReplaced = "TokenReplaced" // a newer join token was made for this Mac, or it was burned
)

func subject(mac string) pkix.Name {
	return pkix.Name{CommonName: mac, Organization: []string{Organization}}
}

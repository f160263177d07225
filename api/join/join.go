// Package join is the contract for joining a Mac to a fleet: the token that an
// administrator carries to the Mac, and the exchange between agent and operator
// through a CertificateSigningRequest.
//
// It owns the names, the format of the token, also of one with which many Macs
// enrol, the format of a Mac's certificate request, and the envelope in which the
// Mac receives its first API token. It rejects a token that was truncated or
// modified, and a request for anything but the server certificate of one Mac. It
// performs no I/O.
//
// Start reading at Token, CheckRequest, Seal and Enrolment.
package join

import "crypto/x509/pkix"

// Signer is the signer name of requests for a Mac's certificate.
const Signer = "metalfleet.dev/agent"

// Organization is in the subject of each Mac's certificate, next to its name.
const Organization = "metalfleet.dev/macs"

// Account returns the name of the ServiceAccount that a join token
// authenticates as, and of the Secret that the token is bound to.
func Account(mac string) string { return "join-" + mac }

// RequestName returns the name of the one CertificateSigningRequest that a
// ServiceAccount may create: RBAC can grant access by name only.
func RequestName(account string) string { return "metalfleet-" + account }

// Keys of the Secret that a join token is bound to.
const (
	// KeyCredential holds the id of the only token that may be used.
	KeyCredential = "credential-id"
	// KeyExpires holds the time at which the token expires, in RFC 3339 format.
	KeyExpires = "expires"
	// KeyRequest holds the UID of the request that used the token; absent when
	// unused.
	KeyRequest = "request-uid"
	// KeyAccess holds the Mac's first API token, sealed to the request's key.
	KeyAccess = "access"
)

// Reasons for the condition Denied or Failed of a request.
const (
	ReasonIssued        = "Issued"
	ReasonNotAMac       = "NotAMac"       // the requester is not the account of a Mac
	ReasonWrongName     = "WrongName"     // the request does not have the name that this account may use
	ReasonNoMac         = "NoMac"         // no MacNode of that name exists, or it is being deleted
	ReasonOldAccount    = "OldAccount"    // the account has been deleted
	ReasonWrongRequest  = "WrongRequest"  // subject, names, key or usages do not match this Mac
	ReasonTokenUsed     = "TokenUsed"     // another request has used the join token
	ReasonTokenReplaced = "TokenReplaced" // a newer join token was created for this Mac, or this one was revoked
)

func subject(mac string) pkix.Name {
	return pkix.Name{CommonName: mac, Organization: []string{Organization}}
}

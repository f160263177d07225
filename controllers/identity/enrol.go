package identity

import (
	"crypto/ecdsa"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// application is the request of a Mac that enrols, with everything that its judgement
// needs. A nil object does not exist.
type application struct {
	request   *certificatesv1.CertificateSigningRequest
	namespace string // of the operator
	enrolment string // its name, from the request's
	account   *corev1.ServiceAccount
	anchor    *corev1.Secret
	mac       *v1alpha1.MacNode // of the name in the request
	now       time.Time
}

// entrant is a Mac that may enrol.
type entrant struct {
	mac         string
	key         *ecdsa.PublicKey
	fingerprint string
	enrolment   join.Enrolment
}

// judgeEnrolment returns the Mac that may enrol, or why its request is denied. It trusts
// nothing that the requester wrote: user, UID and credential are recorded by the API server.
// The name is the requester's choice, within the token's pattern; it may have no name that
// another key has, or had with this token. A name whose MacNode was deleted is free if the Mac
// joined otherwise: the new MacNode has another UID, so it takes over no grant or certificate.
func judgeEnrolment(a application) (entrant, *refusal) {
	e, no := judgeEnrolmentToken(a)
	if no != nil {
		return entrant{}, no
	}
	spec := a.request.Spec
	if !equalUsages(spec.Usages) {
		return entrant{}, &refusal{join.ReasonWrongRequest, fmt.Sprintf("its usages are %q, want %q", spec.Usages, usages)}
	}
	mac, err := join.RequestMac(spec.Request)
	if err != nil {
		return entrant{}, &refusal{join.ReasonWrongRequest, err.Error()}
	}
	key, err := join.CheckRequest(spec.Request, mac)
	if err != nil {
		return entrant{}, &refusal{join.ReasonWrongRequest, err.Error()}
	}
	if !e.Allows(mac) {
		return entrant{}, &refusal{join.ReasonNameNotAllowed, fmt.Sprintf("the enrolment token %s is for Macs called %s, not %s; give this Mac another name with --name", a.enrolment, e.Names, mac)}
	}
	fingerprint, err := join.Fingerprint(key)
	if err != nil {
		return entrant{}, &refusal{join.ReasonWrongRequest, err.Error()}
	}
	if no := judgeName(a, e, mac, fingerprint); no != nil {
		return entrant{}, no
	}
	return entrant{mac: mac, key: key, fingerprint: fingerprint, enrolment: e}, nil
}

// judgeEnrolmentToken checks that the account belongs to an enrolment that has not ended,
// and that the request was made with its only token.
func judgeEnrolmentToken(a application) (join.Enrolment, *refusal) {
	spec := a.request.Spec
	account := join.EnrolmentAccount(a.enrolment)
	switch {
	case spec.Username != userOf(a.namespace, account):
		return join.Enrolment{}, &refusal{join.ReasonWrongName, fmt.Sprintf("%s may not create request %s", spec.Username, a.request.Name)}
	case a.account == nil || types.UID(spec.UID) != a.account.UID:
		return join.Enrolment{}, &refusal{join.ReasonOldAccount, fmt.Sprintf("account %s has been deleted with its enrolment token; create another token", account)}
	case a.anchor == nil || !a.anchor.DeletionTimestamp.IsZero():
		return join.Enrolment{}, &refusal{join.ReasonEnrolmentEnded, "the enrolment token expired or was revoked; create another one"}
	}
	e, err := join.ReadEnrolment(a.anchor.Data)
	switch {
	case err != nil:
		return join.Enrolment{}, &refusal{join.ReasonEnrolmentEnded, fmt.Sprintf("the Secret of the enrolment token is damaged: %s; revoke it and create another one", err)}
	case e.Credential == "" || !slices.Equal([]string(spec.Extra[credentialID]), []string{e.Credential}):
		return join.Enrolment{}, &refusal{join.ReasonTokenReplaced, "the request was made with another token of this account; use the enrolment token"}
	case !a.now.Before(e.Expires):
		return join.Enrolment{}, &refusal{join.ReasonEnrolmentEnded, fmt.Sprintf("the enrolment token expired at %s; create another one", e.Expires.UTC().Format(time.RFC3339))}
	}
	return e, nil
}

// judgeName checks that the name is free, or that the same Mac asks again.
func judgeName(a application, e join.Enrolment, mac, fingerprint string) *refusal {
	use, used := e.Uses[mac]
	switch {
	case used && use.Key != fingerprint, a.mac != nil && a.mac.Annotations[v1alpha1.AnnotationEnrolledKey] != fingerprint:
		return &refusal{join.ReasonNameTaken, fmt.Sprintf("the name %s belongs to another Mac or another key; give this Mac another name with --name, or bring it back with `kubectl metalfleet join-token %s`", mac, mac)}
	case a.mac != nil && !a.mac.DeletionTimestamp.IsZero(), used && a.mac == nil && use.Request != string(a.request.UID):
		return &refusal{join.ReasonNoMac, fmt.Sprintf("Mac %s enrolled before, and its MacNode was deleted; let it join again with `kubectl metalfleet join-token %s`", mac, mac)}
	case !used && a.mac != nil:
		return &refusal{join.ReasonNameTaken, fmt.Sprintf("MacNode %s exists and did not enrol with this token; use `kubectl metalfleet join-token %s`", mac, mac)}
	case !used && e.Left() == 0:
		return &refusal{join.ReasonEnrolmentFull, fmt.Sprintf("the enrolment token %s admitted %d Macs, its limit; create another one", a.enrolment, e.Count)}
	}
	return nil
}

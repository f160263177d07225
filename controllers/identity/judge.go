package identity

import (
	"crypto/ecdsa"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// credentialID is the extra field in which the API server reports the token of a request.
const credentialID = "authentication.kubernetes.io/credential-id"

// usages are exactly those of a Mac's certificate.
var usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}

// requester is the Mac's account that made a request.
type requester struct {
	mac, account string
	// joins is true for the account of join tokens.
	joins bool
}

// userOf returns the user name of an account in the API server.
func userOf(namespace, account string) string {
	return "system:serviceaccount:" + namespace + ":" + account
}

// requesterOf parses the user name that the API server recorded in a request.
func requesterOf(namespace, username string) (requester, bool) {
	account, ok := strings.CutPrefix(username, userOf(namespace, ""))
	if !ok {
		return requester{}, false
	}
	mac, joins := strings.CutPrefix(account, join.Account(""))
	if !joins {
		if mac, ok = strings.CutPrefix(account, v1alpha1.AgentObjectName("")); !ok {
			return requester{}, false
		}
	}
	return requester{mac: mac, account: account, joins: joins}, join.CheckMac(mac) == nil
}

// cutRequest returns the Mac in the name of a join request.
func cutRequest(name string) (mac string, ok bool) {
	return strings.CutPrefix(name, join.RequestName(join.Account("")))
}

// petition is a request with everything that the judgement needs. A nil object does not
// exist.
type petition struct {
	request *certificatesv1.CertificateSigningRequest
	from    requester
	known   bool // from is a Mac's account
	mac     *v1alpha1.MacNode
	account *corev1.ServiceAccount
	anchor  *corev1.Secret // the object that the join token is bound to
}

// refusal is the reason for denying a request.
type refusal struct{ reason, message string }

// judge returns the key to sign, or why the request is denied. It trusts nothing that the
// requester wrote: the user, its UID and the credential's id are recorded by the API
// server, and the rest must be exactly what a Mac's agent sends.
func judge(p petition) (*ecdsa.PublicKey, *refusal) {
	if no := judgeRequester(p); no != nil {
		return nil, no
	}
	spec := p.request.Spec
	if !equalUsages(spec.Usages) {
		return nil, &refusal{join.ReasonWrongRequest, fmt.Sprintf("its usages are %q, want %q", spec.Usages, usages)}
	}
	key, err := join.CheckRequest(spec.Request, p.from.mac)
	if err != nil {
		return nil, &refusal{join.ReasonWrongRequest, err.Error()}
	}
	if p.from.joins {
		if no := judgeToken(p); no != nil {
			return nil, no
		}
	}
	return key, nil
}

// judgeRequester checks that the account belongs to an existing Mac, and uses its own
// request's name.
func judgeRequester(p petition) *refusal {
	spec := p.request.Spec
	switch {
	case !p.known:
		return &refusal{join.ReasonNotAMac, fmt.Sprintf("%s is not the account of a Mac", spec.Username)}
	case p.request.Name != join.RequestName(p.from.account):
		return &refusal{join.ReasonWrongName, fmt.Sprintf("account %s may create only the request %s", p.from.account, join.RequestName(p.from.account))}
	case p.mac == nil || !p.mac.DeletionTimestamp.IsZero():
		return &refusal{join.ReasonNoMac, fmt.Sprintf("MacNode %s does not exist; create it with `kubectl metalfleet join-token`", p.from.mac)}
	case p.account == nil || types.UID(spec.UID) != p.account.UID:
		return &refusal{join.ReasonOldAccount, fmt.Sprintf("account %s has been deleted with its MacNode; this Mac must join again", p.from.account)}
	}
	return nil
}

// judgeToken checks that the join token is for this request.
func judgeToken(p petition) *refusal {
	switch {
	case p.anchor == nil:
		return &refusal{join.ReasonTokenUsed, "the join token was used or revoked; create a new one"}
	case !slices.Equal([]string(p.request.Spec.Extra[credentialID]), []string{string(p.anchor.Data[join.KeyCredential])}):
		return &refusal{join.ReasonTokenReplaced, "a newer join token was created for this Mac; use that one, or create another"}
	}
	if by := p.anchor.Data[join.KeyRequest]; len(by) > 0 && string(by) != string(p.request.UID) {
		return &refusal{join.ReasonTokenUsed, "the join token was used by another request; if that was not this Mac, delete the MacNode and join under another name"}
	}
	return nil
}

func equalUsages(have []certificatesv1.KeyUsage) bool {
	sorted := slices.Sorted(slices.Values(have))
	return slices.Equal(sorted, usages)
}

// lifeOf returns the validity of a certificate: the requested one, at most limit.
func lifeOf(asked *int32, limit time.Duration) time.Duration {
	if asked == nil {
		return limit
	}
	return min(time.Duration(*asked)*time.Second, limit)
}

// accessSeconds is the validity of a Mac's own API token. The agent renews it long before;
// a Mac that was off for longer joins again.
const accessSeconds = 7 * 24 * 3600

// accessRequest requests the token of a Mac's own account.
func accessRequest() *authenticationv1.TokenRequest {
	seconds := int64(accessSeconds)
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
}

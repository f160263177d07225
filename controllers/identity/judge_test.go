package identity

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const space = "metalfleet-system"

// good returns a valid petition of Mac mac-a, with a join token or its own account.
func good(t *testing.T, account string) petition {
	t.Helper()
	key, err := join.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := join.NewRequest("mac-a", key)
	if err != nil {
		t.Fatal(err)
	}
	user := "system:serviceaccount:" + space + ":" + account
	p := petition{
		request: &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "metalfleet-" + account, UID: "request"},
			Spec: certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: join.Signer, Username: user, UID: "account",
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature},
				Extra:  map[string]certificatesv1.ExtraValue{credentialID: {"JTI=1"}}},
		},
		mac:     &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-a"}},
		account: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, UID: "account"}},
		anchor:  &corev1.Secret{Data: map[string][]byte{join.KeyCredential: []byte("JTI=1")}},
	}
	p.from, p.known = requesterOf(space, user)
	return p
}

func TestARequestIsJudged(t *testing.T) {
	const joins, own = "join-mac-a", "mac-mac-a"
	for name, tc := range map[string]struct {
		account string
		change  func(*petition)
		want    string
	}{
		"by a join token":                        {account: joins, change: func(*petition) {}},
		"by a join token, judged again":          {account: joins, change: func(p *petition) { p.anchor.Data[join.KeyRequest] = []byte("request") }},
		"by its own account":                     {account: own, change: func(p *petition) { p.anchor = nil }},
		"by its own account next to a new token": {account: own, change: func(p *petition) { p.anchor.Data[join.KeyCredential] = []byte("JTI=2") }},
		"by a stranger":                          {account: own, change: func(p *petition) { p.known = false }, want: join.ReasonNotAMac},
		"under another name":                     {account: own, change: func(p *petition) { p.request.Name = "metalfleet-join-mac-a" }, want: join.ReasonWrongName},
		"without a MacNode":                      {account: own, change: func(p *petition) { p.mac = nil }, want: join.ReasonNoMac},
		"of a MacNode being deleted":             {account: own, change: func(p *petition) { p.mac.DeletionTimestamp = ptr.To(metav1.Now()) }, want: join.ReasonNoMac},
		"without an account":                     {account: own, change: func(p *petition) { p.account = nil }, want: join.ReasonOldAccount},
		"of an account of old":                   {account: own, change: func(p *petition) { p.account.UID = "another" }, want: join.ReasonOldAccount},
		"for a client":                           {account: own, change: func(p *petition) { p.request.Spec.Usages[0] = certificatesv1.UsageClientAuth }, want: join.ReasonWrongRequest},
		"for a server and a client": {account: own, change: func(p *petition) {
			p.request.Spec.Usages = append(p.request.Spec.Usages, certificatesv1.UsageClientAuth)
		}, want: join.ReasonWrongRequest},
		"for any use":                          {account: own, change: func(p *petition) { p.request.Spec.Usages = nil }, want: join.ReasonWrongRequest},
		"for another Mac":                      {account: own, change: func(p *petition) { p.from.mac = "mac-ab" }, want: join.ReasonWrongRequest},
		"with a token that was burned":         {account: joins, change: func(p *petition) { p.anchor = nil }, want: join.ReasonTokenUsed},
		"with a token that was used":           {account: joins, change: func(p *petition) { p.anchor.Data[join.KeyRequest] = []byte("another") }, want: join.ReasonTokenUsed},
		"with a token that was replaced":       {account: joins, change: func(p *petition) { p.anchor.Data[join.KeyCredential] = []byte("JTI=2") }, want: join.ReasonTokenReplaced},
		"with a token that is not written yet": {account: joins, change: func(p *petition) { p.anchor.Data = nil }, want: join.ReasonTokenReplaced},
		"by something that has no token":       {account: joins, change: func(p *petition) { p.request.Spec.Extra = nil }, want: join.ReasonTokenReplaced},
	} {
		p := good(t, tc.account)
		tc.change(&p)
		key, no := judge(p)
		if reason := reasonOf(no); reason != tc.want || (key == nil) == (tc.want == "") {
			t.Errorf("a request %s: %q, want %q", name, reason, tc.want)
		}
	}
}

func reasonOf(no *refusal) string {
	if no == nil {
		return ""
	}
	return no.reason
}

func TestRequestersAreReadExactly(t *testing.T) {
	for user, want := range map[string]string{
		"system:serviceaccount:metalfleet-system:mac-a":             "a",
		"system:serviceaccount:metalfleet-system:mac-mac-a":         "mac-a",
		"system:serviceaccount:metalfleet-system:join-a":            "a joins",
		"system:serviceaccount:metalfleet-system:join-mac-a":        "mac-a joins",
		"system:serviceaccount:metalfleet-system:mac-join-a":        "join-a",
		"system:serviceaccount:metalfleet-system:mac-":              "",
		"system:serviceaccount:metalfleet-system:metalfleet-gatewa": "",
		"system:serviceaccount:other:mac-a":                         "",
		"system:serviceaccount:metalfleet-system2:mac-a":            "",
		"mac-a": "",
		"admin": "",
		"system:serviceaccount:metalfleet-system:mac-a:b": "",
	} {
		from, ok := requesterOf(space, user)
		got := ""
		if ok {
			got = from.mac
			if from.joins {
				got += " joins"
			}
		}
		if got != want {
			t.Errorf("%s is %q, want %q", user, got, want)
		}
	}
}

func TestACertificateIsNeverGoodForLonger(t *testing.T) {
	for _, tc := range []struct {
		asked *int32
		want  time.Duration
	}{{want: 24 * time.Hour}, {asked: ptr.To[int32](600), want: 10 * time.Minute}, {asked: ptr.To[int32](1 << 30), want: 24 * time.Hour}} {
		if got := lifeOf(tc.asked, 24*time.Hour); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
}

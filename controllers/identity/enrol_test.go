package identity

import (
	"context"
	"errors"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// ends is when the enrolment of applying expires.
var ends = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// applying returns a valid application of lab-1 with an enrolment token for lab-*, and the
// fingerprint of its key.
func applying(t *testing.T) (a application, fingerprint string) {
	t.Helper()
	key, err := join.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := join.NewRequest("lab-1", key)
	if err != nil {
		t.Fatal(err)
	}
	if fingerprint, err = join.Fingerprint(&key.PublicKey); err != nil {
		t.Fatal(err)
	}
	account := join.EnrolmentAccount("lab")
	e := join.Enrolment{Names: "lab-*", Count: 2, Credential: "JTI=1", Expires: ends, Uses: map[string]join.Use{"lab-0": {Key: "SHA256:0", Request: "before"}}}
	return application{
		request: &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: join.EnrolmentRequest("lab", 7), UID: "request"},
			Spec: certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: join.Signer, Username: userOf(space, account), UID: "account",
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature},
				Extra:  map[string]certificatesv1.ExtraValue{credentialID: {"JTI=1"}}},
		},
		namespace: space, enrolment: "lab",
		account: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, UID: "account"}},
		anchor:  &corev1.Secret{Data: e.Data()},
		now:     ends.Add(-time.Second),
	}, fingerprint
}

func TestAnEnrolmentIsJudged(t *testing.T) {
	uses := func(a *application, mac, key, request string) {
		a.anchor.Data["mac."+mac] = []byte(key + " " + request)
	}
	mac := func(key string) *v1alpha1.MacNode {
		return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "lab-1", Annotations: map[string]string{v1alpha1.AnnotationEnrolledKey: key}}}
	}
	for name, tc := range map[string]struct {
		change func(a *application, key string)
		want   string
	}{
		"in the last second of its token":      {change: func(*application, string) {}},
		"when its token expires":               {change: func(a *application, _ string) { a.now = ends }, want: join.ReasonEnrolmentEnded},
		"long after its token expired":         {change: func(a *application, _ string) { a.now = ends.AddDate(1, 0, 0) }, want: join.ReasonEnrolmentEnded},
		"with a token that has no end":         {change: func(a *application, _ string) { delete(a.anchor.Data, join.KeyExpires) }, want: join.ReasonEnrolmentEnded},
		"with a token that was revoked":        {change: func(a *application, _ string) { a.anchor = nil }, want: join.ReasonEnrolmentEnded},
		"with a token that is being revoked":   {change: func(a *application, _ string) { a.anchor.DeletionTimestamp = ptr.To(metav1.Now()) }, want: join.ReasonEnrolmentEnded},
		"with a damaged Secret":                {change: func(a *application, _ string) { a.anchor.Data[join.KeyCount] = nil }, want: join.ReasonEnrolmentEnded},
		"with another token of the account":    {change: func(a *application, _ string) { a.anchor.Data[join.KeyCredential] = []byte("JTI=2") }, want: join.ReasonTokenReplaced},
		"with a token that is not written yet": {change: func(a *application, _ string) { delete(a.anchor.Data, join.KeyCredential) }, want: join.ReasonTokenReplaced},
		"with a token of no id": {change: func(a *application, _ string) {
			delete(a.anchor.Data, join.KeyCredential)
			a.request.Spec.Extra[credentialID] = []string{""}
		}, want: join.ReasonTokenReplaced},
		"by something that has no token":         {change: func(a *application, _ string) { a.request.Spec.Extra = nil }, want: join.ReasonTokenReplaced},
		"with two tokens":                        {change: func(a *application, _ string) { a.request.Spec.Extra[credentialID] = []string{"JTI=1", "JTI=2"} }, want: join.ReasonTokenReplaced},
		"by the account of another enrolment":    {change: func(a *application, _ string) { a.request.Spec.Username = userOf(space, "enrol-other") }, want: join.ReasonWrongName},
		"by the account of another namespace":    {change: func(a *application, _ string) { a.request.Spec.Username = userOf("other", "enrol-lab") }, want: join.ReasonWrongName},
		"without an account":                     {change: func(a *application, _ string) { a.account = nil }, want: join.ReasonOldAccount},
		"of an account of old":                   {change: func(a *application, _ string) { a.account.UID = "another" }, want: join.ReasonOldAccount},
		"for a client":                           {change: func(a *application, _ string) { a.request.Spec.Usages[0] = certificatesv1.UsageClientAuth }, want: join.ReasonWrongRequest},
		"that is none":                           {change: func(a *application, _ string) { a.request.Spec.Request = []byte("x") }, want: join.ReasonWrongRequest},
		"under a name out of the pattern":        {change: func(a *application, _ string) { a.anchor.Data[join.KeyNames] = []byte("desk-*") }, want: join.ReasonNameNotAllowed},
		"of one more than the count":             {change: func(a *application, _ string) { uses(a, "lab-2", "SHA256:2", "another") }, want: join.ReasonEnrolmentFull},
		"under the name of another key":          {change: func(a *application, _ string) { uses(a, "lab-1", "SHA256:1", "request") }, want: join.ReasonNameTaken},
		"under the name of a Mac":                {change: func(a *application, _ string) { a.mac = mac("") }, want: join.ReasonNameTaken},
		"under the name of a Mac of another key": {change: func(a *application, key string) { uses(a, "lab-1", key, "request"); a.mac = mac("SHA256:1") }, want: join.ReasonNameTaken},
		"of another enrolment's Mac":             {change: func(a *application, key string) { a.mac = mac(key) }, want: join.ReasonNameTaken},
		"that is judged again":                   {change: func(a *application, key string) { uses(a, "lab-1", key, "request") }},
		"of a Mac that asks again":               {change: func(a *application, key string) { uses(a, "lab-1", key, "before"); a.mac = mac(key) }},
		"of a Mac that was removed":              {change: func(a *application, key string) { uses(a, "lab-1", key, "before") }, want: join.ReasonNoMac},
		"of a Mac that is being removed": {change: func(a *application, key string) {
			uses(a, "lab-1", key, "request")
			a.mac = mac(key)
			a.mac.DeletionTimestamp = ptr.To(metav1.Now())
		}, want: join.ReasonNoMac},
	} {
		a, fingerprint := applying(t)
		tc.change(&a, fingerprint)
		who, no := judgeEnrolment(a)
		if reason := reasonOf(no); reason != tc.want {
			t.Errorf("a request %s: %q, want %q", name, reason, tc.want)
		}
		if admitted := who.mac == "lab-1" && who.fingerprint == fingerprint && who.key != nil; admitted != (tc.want == "") {
			t.Errorf("a request %s admits %+v", name, who)
		}
	}
}

// TestTheEndOfAnEnrolmentDeletesNoLaterRequest: the requester of a slot that was freed creates another one while the end is
// under way. The operator would wait for the deletion of one that is gone already.
func TestTheEndOfAnEnrolmentDeletesNoLaterRequest(t *testing.T) {
	c := newDrama(t).api
	request := func(uid types.UID) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: join.EnrolmentRequest("lab", 1), UID: uid}}
	}
	if err := c.Create(t.Context(), request("first")); err != nil {
		t.Fatal(err)
	}
	replaced := interceptor.NewClient(c, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
		if err := errors.Join(c.Delete(ctx, request("")), c.Create(ctx, request("later"))); err != nil {
			t.Fatal(err)
		}
		want := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions
		if want == nil || want.UID == nil || *want.UID != "first" {
			t.Errorf("%s is deleted whichever it is: %v", o.GetName(), want)
		}
		return apierrors.NewConflict(certificatesv1.Resource("certificatesigningrequests"), o.GetName(), errors.New("the UID is another"))
	}})
	r := &Enrolments{Client: replaced, Issuer: &Issuer{Client: c, Namespace: "ns"}}
	if err := r.takeBack(t.Context(), "lab"); !apierrors.IsConflict(err) {
		t.Errorf("%v, want a conflict", err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(request("")), request("")); err != nil {
		t.Errorf("the later request is gone: %v", err)
	}
}

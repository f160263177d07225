package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	contract "metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// listed is what `enrolment list` reports of the only enrolment.
func (p *person) listed() enrolmentView {
	p.t.Helper()
	out, _ := p.wants(exitOK, "enrolment", "list", "-o", "json")
	var views []enrolmentView
	p.must(json.Unmarshal([]byte(out), &views))
	if len(views) != 1 {
		p.t.Fatalf("%d enrolments: %s", len(views), out)
	}
	return views[0]
}

// With the production controllers: a token is created, a Mac that uses it waits, is approved and
// counted, and the token is revoked.
func TestAnEnrolmentFromCreationToRevocation(t *testing.T) {
	p := newPerson(t)
	p.operator()
	ctx := context.Background()
	_, errs := p.wants(exitFailed, "enrolment", "create", "lab")
	contains(t, "without --count", errs, "1 to 1000 Macs, not 0")
	text, _ := p.wants(exitOK, "enrolment", "create", "lab", "--count", "3", "--approval")
	token, err := contract.Parse(text)
	p.must(err)
	_, errs = p.wants(exitFailed, "enrolment", "create", "lab", "--count", "3")
	contains(t, "a second one", errs, "exists already; revoke it first")

	config := rest.AnonymousClientConfig(env.Config())
	config.BearerToken = token.Credential
	mac, err := client.New(config, client.Options{Scheme: scheme()})
	p.must(err)
	key, err := contract.NewKey()
	p.must(err)
	request, err := contract.NewRequest("lab-1", key)
	p.must(err)
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: contract.EnrolmentRequest("lab", 7)},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: contract.Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}}}
	p.eventually("the request is taken", func() error { return mac.Create(ctx, csr.DeepCopy()) })
	fingerprint, err := contract.Fingerprint(&key.PublicKey)
	p.must(err)
	out, _ := p.wants(exitOK, "enrolment", "list")
	contains(t, "list", out, "lab   lab-*  0     3", "required", "waiting: lab-1 with key "+fingerprint)
	_, errs = p.wants(exitFailed, "enrolment", "approve", "lab", "lab-1", "--key", "SHA256:other")
	contains(t, "another key", errs, "no such Mac waits")
	p.wants(exitOK, "enrolment", "approve", "lab", "lab-1")
	p.eventually("it is counted", func() error {
		if v := p.listed(); v.Used != 1 || v.Left != 2 || len(v.Waiting) != 0 || v.Macs[0] != "lab-1" {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})
	p.wants(exitOK, "enrolment", "revoke", "lab")
	if out, _ = p.wants(exitOK, "enrolment", "list", "-o", "json"); out != "[]\n" {
		t.Errorf("after it was revoked: %s", out)
	}
	node := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "lab-1"}}
	p.must(p.c.Get(ctx, client.ObjectKeyFromObject(node), node)) // it stays
	lost := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLost+`":"true"}}}`))
	p.must(p.c.Patch(ctx, node, lost))
	p.must(p.c.Delete(ctx, node))
	p.eventually("the MacNode is gone", func() error {
		if err := p.c.Get(ctx, client.ObjectKeyFromObject(node), node); client.IgnoreNotFound(err) != nil || err == nil {
			return errors.Join(err, errors.New("it is there"))
		}
		return nil
	})
}

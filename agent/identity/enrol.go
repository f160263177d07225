package identity

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"math/rand/v2"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/join"
)

// Enrolled is what a Mac gets for an enrolment token.
type Enrolled struct {
	// Certificate of the Mac, in PEM.
	Certificate []byte
	// Sealed holds the first API token, for join.Open with Request.
	Sealed []byte
	// Request is the UID of the certificate request.
	Request types.UID
}

// Enrol asks for the certificate of a Mac with an enrolment token, in a free slot, and waits
// until ctx ends. If this is another try with the same key, a request that an earlier one made
// is taken up. The operator deletes the request later.
func Enrol(ctx context.Context, c client.Client, enrolment, mac string, key *ecdsa.PrivateKey, again bool) (Enrolled, error) {
	var csr *certificatesv1.CertificateSigningRequest
	var err error
	if again {
		if csr, err = findSlot(ctx, c, enrolment, key); err != nil {
			return Enrolled{}, err
		}
	}
	if csr == nil {
		csr, err = takeSlot(ctx, c, enrolment, mac, key)
	}
	if err != nil {
		return Enrolled{}, err
	}
	csr, err = await(ctx, c, csr.Name, csr.UID)
	if err != nil {
		return Enrolled{}, err
	}
	for _, x := range csr.Status.Conditions {
		if x.Type == join.ConditionAccess {
			sealed, err := join.DecodeAccess(x.Message)
			return Enrolled{Certificate: csr.Status.Certificate, Sealed: sealed, Request: csr.UID}, err
		}
	}
	return Enrolled{}, fmt.Errorf("certificate request %s has a certificate but no condition %s: operator and agent have different versions", csr.Name, join.ConditionAccess)
}

// takeSlot creates the request in the first free slot after a random one, and waits for a
// slot if all are in use.
func takeSlot(ctx context.Context, c client.Client, enrolment, mac string, key *ecdsa.PrivateKey) (*certificatesv1.CertificateSigningRequest, error) {
	request, err := join.NewRequest(mac, key)
	if err != nil {
		return nil, err
	}
	first := rand.IntN(join.EnrolmentSlots)
	for tried, pause := 0, askFirst; ; tried++ {
		csr := newRequest(join.EnrolmentRequest(enrolment, (first+tried)%join.EnrolmentSlots), request)
		err := c.Create(ctx, csr)
		if err == nil {
			return csr, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create certificate request %s: %w", csr.Name, err)
		}
		if tried%join.EnrolmentSlots != join.EnrolmentSlots-1 {
			continue
		}
		if pause = min(2*pause, askMost); !register.Sleep(ctx, pause) {
			return nil, fmt.Errorf("all %d places for requests of this enrolment token are in use: %w", join.EnrolmentSlots, ErrUnanswered)
		}
	}
}

// findSlot returns the request that an earlier run made for this key, unless it was refused:
// nil if there is none.
func findSlot(ctx context.Context, c client.Client, enrolment string, key *ecdsa.PrivateKey) (*certificatesv1.CertificateSigningRequest, error) {
	for slot := range join.EnrolmentSlots {
		var csr certificatesv1.CertificateSigningRequest
		err := c.Get(ctx, client.ObjectKey{Name: join.EnrolmentRequest(enrolment, slot)}, &csr)
		if err == nil && same(&csr, key) && refused(&csr) == nil {
			return &csr, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read certificate request %s: %w", csr.Name, err)
		}
	}
	return nil, nil
}

// EnrolmentKnown reports whether the API server accepts an enrolment token: it reads the
// first slot.
func EnrolmentKnown(ctx context.Context, c client.Client, enrolment string) error {
	var csr certificatesv1.CertificateSigningRequest
	return client.IgnoreNotFound(c.Get(ctx, client.ObjectKey{Name: join.EnrolmentRequest(enrolment, 0)}, &csr))
}

func newRequest(name string, request []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: join.Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}},
	}
}

package identity

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/join"
)

// Refused is the signer's no. Waiting does not change it.
type Refused struct{ Reason, Message string }

func (r *Refused) Error() string {
	return fmt.Sprintf("the certificate request was denied (%s): %s", r.Reason, r.Message)
}

// ErrUnanswered means that the request was neither signed nor refused.
var ErrUnanswered = errors.New("the certificate request was not answered; check that the operator is running")

const (
	askFirst = 50 * time.Millisecond
	askMost  = 2 * time.Second
)

// Obtain asks, as account, for the certificate of the Mac called mac, and waits
// until ctx ends. A request for the same key that is there already is taken up:
// an agent may have ended while it waited. The certificate is in PEM; Collected
// is to be called when it is stored.
func Obtain(ctx context.Context, c client.Client, account, mac string, key *ecdsa.PrivateKey) (certificate []byte, uid types.UID, err error) {
	uid, err = ask(ctx, c, account, mac, key)
	if err != nil {
		return nil, "", err
	}
	csr, err := await(ctx, c, join.RequestName(account), uid)
	if err != nil {
		return nil, "", err
	}
	return csr.Status.Certificate, uid, nil
}

// await returns the request once it is signed.
func await(ctx context.Context, c client.Client, name string, uid types.UID) (*certificatesv1.CertificateSigningRequest, error) {
	var last error
	for pause := askFirst; ; pause = min(2*pause, askMost) {
		var csr certificatesv1.CertificateSigningRequest
		err := c.Get(ctx, client.ObjectKey{Name: name}, &csr)
		switch {
		case err == nil && csr.UID != uid || apierrors.IsNotFound(err):
			return nil, fmt.Errorf("certificate request %s was deleted while waiting for its approval", name)
		case apierrors.IsUnauthorized(err):
			return nil, fmt.Errorf("read certificate request %s: %w", name, err)
		case err != nil:
			last = err // away for a moment, perhaps
		case refused(&csr) != nil:
			return nil, refused(&csr)
		case len(csr.Status.Certificate) > 0:
			return &csr, nil
		}
		if !register.Sleep(ctx, pause) {
			return nil, errors.Join(ErrUnanswered, last)
		}
	}
}

// ask makes the request, in place of an older one of the same name.
func ask(ctx context.Context, c client.Client, account, mac string, key *ecdsa.PrivateKey) (types.UID, error) {
	request, err := join.NewRequest(mac, key)
	if err != nil {
		return "", err
	}
	csr := newRequest(join.RequestName(account), request)
	for {
		made := csr.DeepCopy()
		err := c.Create(ctx, made)
		if err == nil {
			return made.UID, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("create certificate request %s: %w", csr.Name, err)
		}
		var have certificatesv1.CertificateSigningRequest
		err = c.Get(ctx, client.ObjectKeyFromObject(csr), &have)
		if err == nil {
			if same(&have, key) && refused(&have) == nil {
				return have.UID, nil
			}
			err = c.Delete(ctx, &have, client.Preconditions{UID: &have.UID})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return "", fmt.Errorf("replace certificate request %s: %w", csr.Name, err)
		}
	}
}

// Collected reports to the operator that the certificate is stored: the request
// is deleted, and the operator invalidates the join token that it was made with.
func Collected(ctx context.Context, c client.Client, account string, uid types.UID) error {
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: join.RequestName(account)}}
	err := c.Delete(ctx, csr, client.Preconditions{UID: &uid})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete certificate request %s: %w", csr.Name, err)
	}
	return nil
}

// same says whether a request is for this very key.
func same(csr *certificatesv1.CertificateSigningRequest, key *ecdsa.PrivateKey) bool {
	theirs, err := join.RequestKey(csr.Spec.Request)
	return err == nil && key.PublicKey.Equal(theirs)
}

func refused(csr *certificatesv1.CertificateSigningRequest) error {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return &Refused{Reason: c.Reason, Message: c.Message}
		}
	}
	return nil
}

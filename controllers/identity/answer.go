package identity

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// refuse denies a request; one that another approver has approved is marked as failed.
func (i *Issuer) refuse(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, no refusal) error {
	log := ctrl.LoggerFrom(ctx).WithValues("CertificateSigningRequest", csr.Name, "requester", csr.Spec.Username)
	var err error
	if has(csr, certificatesv1.CertificateApproved) {
		i.setCondition(csr, certificatesv1.CertificateFailed, no.reason, no.message)
		err = i.Client.Status().Update(ctx, csr)
	} else {
		i.setCondition(csr, certificatesv1.CertificateDenied, no.reason, no.message)
		err = i.Client.SubResource("approval").Update(ctx, csr)
	}
	if err != nil {
		return fmt.Errorf("reject request %s: %w", csr.Name, err)
	}
	log.Info("Certificate request rejected", "reason", no.reason, "message", no.message)
	return nil
}

// approve approves a request, unless it is approved.
func (i *Issuer) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, message string) error {
	if has(csr, certificatesv1.CertificateApproved) {
		return nil
	}
	i.setCondition(csr, certificatesv1.CertificateApproved, join.ReasonIssued, message)
	if err := i.Client.SubResource("approval").Update(ctx, csr); err != nil {
		return fmt.Errorf("approve request %s: %w", csr.Name, err)
	}
	return nil
}

// signRequest stores the certificate of a Mac in its approved request, with the conditions
// that the caller added, and returns the certificate's validity.
func (i *Issuer) signRequest(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, key *ecdsa.PublicKey, mac *v1alpha1.MacNode) (time.Duration, error) {
	now, life := i.Clock.Now(), lifeOf(csr.Spec.ExpirationSeconds, i.Life)
	ca, until, err := i.signer(ctx, now, life)
	if err != nil {
		return 0, err
	}
	if csr.Status.Certificate, err = ca.issueMac(key, mac.Name, mac.UID, now, until); err != nil {
		return 0, err
	}
	if err := i.Client.Status().Update(ctx, csr); err != nil {
		return 0, fmt.Errorf("store certificate of request %s: %w", csr.Name, err)
	}
	return life, nil
}

// firstAccess returns the first token of a Mac's own account, sealed to the request's key.
func (i *Issuer) firstAccess(ctx context.Context, mac string, csr *certificatesv1.CertificateSigningRequest, key *ecdsa.PublicKey) ([]byte, error) {
	own := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: v1alpha1.AgentObjectName(mac)}}
	token := accessRequest()
	if err := i.Client.SubResource("token").Create(ctx, own, token); err != nil {
		return nil, fmt.Errorf("token of account %s: %w", own.Name, err)
	}
	return join.Seal(key, string(csr.UID), join.Access{Token: token.Status.Token, Expires: token.Status.ExpirationTimestamp.Time})
}

// setCondition uses our own clock, by which decidedAt counts; the API server's may differ.
func (i *Issuer) setCondition(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string) {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.NewTime(i.Clock.Now()),
	})
}

func has(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == kind {
			return true
		}
	}
	return false
}

// decidedAt returns when a request was approved, denied or marked as failed; zero if it was
// not.
func decidedAt(csr *certificatesv1.CertificateSigningRequest) (at time.Time) {
	for _, c := range csr.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			if c.LastUpdateTime.After(at) {
				at = c.LastUpdateTime.Time
			}
		}
	}
	return at
}

// collectable returns how much longer a Mac may collect what it needs from a decided request. A
// decision far in the future is of an operator whose clock was ahead.
func collectable(csr *certificatesv1.CertificateSigningRequest, now time.Time) time.Duration {
	left := decidedAt(csr).Add(collectWithin).Sub(now)
	if left > 2*collectWithin {
		return 0
	}
	return max(0, left)
}

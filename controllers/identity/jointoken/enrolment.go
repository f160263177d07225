package jointoken

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Validity of an enrolment token, which is at least Shortest.
const (
	DefaultEnrolmentLife = 24 * time.Hour
	LongestEnrolment     = 30 * 24 * time.Hour
)

// EnrolmentOptions describe an enrolment token.
type EnrolmentOptions struct {
	// Name of the enrolment.
	Name string
	// Names is the pattern of the Macs' names; empty: the enrolment's name, "-" and anything.
	Names string
	// Count is how many Macs may join.
	Count int
	// Approval requires that a person approves each Mac.
	Approval bool
	// Namespace of the operator.
	Namespace string
	// Server and CA are as in Options.
	Server string
	CA     []byte
	// Life is the validity of the token; 0 means DefaultEnrolmentLife.
	Life time.Duration
}

// ErrEnrolment means that there is an enrolment of that name.
var ErrEnrolment = errors.New("exists already")

// MintEnrolment creates an enrolment and its token. It returns when the token expires.
func MintEnrolment(ctx context.Context, c client.Client, o EnrolmentOptions) (token string, expires time.Time, err error) {
	if o.Life == 0 {
		o.Life = DefaultEnrolmentLife
	}
	if o.Names == "" {
		o.Names = o.Name + "-*"
	}
	e := join.Enrolment{Names: o.Names, Count: o.Count, Approval: o.Approval}
	if err := errors.Join(join.CheckEnrolment(o.Name), e.Check()); err != nil {
		return "", time.Time{}, err
	}
	if o.Life < Shortest || o.Life > LongestEnrolment {
		return "", time.Time{}, fmt.Errorf("an enrolment token can be valid for %s to %s, not for %s", Shortest, LongestEnrolment, o.Life)
	}
	// Check that the token can be encoded before anything is created.
	t := join.Token{Server: o.Server, CA: o.CA, Namespace: o.Namespace, Enrolment: o.Name, Approval: o.Approval, Credential: "none", Expires: time.Now().Add(o.Life)}
	if _, err := t.Encode(); err != nil {
		return "", time.Time{}, err
	}
	anchor := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: join.EnrolmentAccount(o.Name), Labels: map[string]string{v1alpha1.LabelEnrolment: o.Name}},
		Type:       corev1.SecretTypeOpaque, Data: e.Data(),
	}
	if err := c.Create(ctx, anchor); apierrors.IsAlreadyExists(err) {
		return "", time.Time{}, fmt.Errorf("enrolment %s %w", o.Name, ErrEnrolment)
	} else if err != nil {
		return "", time.Time{}, fmt.Errorf("create Secret %s: %w", anchor.Name, err)
	}
	if t.Credential, e.Credential, t.Expires, err = request(ctx, c, anchor, o.Life); err == nil {
		e.Expires = t.Expires
		anchor.Data = e.Data()
		err = complete(ctx, c, anchor)
	}
	if err != nil {
		return "", time.Time{}, errors.Join(err, client.IgnoreNotFound(c.Delete(context.WithoutCancel(ctx), anchor)))
	}
	token, err = t.Encode()
	return token, t.Expires, err
}

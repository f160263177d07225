// Package jointoken creates the one-time token with which a Mac joins, and the enrolment token
// with which many Macs do.
//
// It owns creating the MacNode if there is none, the Secret that a token's life is bound
// to, and the TokenRequest for it. It acts with the permissions of its caller: to read and
// create MacNodes, and in the operator's namespace to create, read, update and delete
// Secrets and to create tokens of ServiceAccounts. It refuses a Mac that is joined and
// alive, unless the caller asks to join it again, and an API server that the Mac could not
// verify. It prints nothing: the token is a secret.
//
// Start reading at Mint and MintEnrolment.
package jointoken

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Validity of a token. The API server issues none that is shorter than Shortest.
const (
	DefaultLife = time.Hour
	Shortest    = 10 * time.Minute
	Longest     = 24 * time.Hour
)

// accountWithin is how long the operator may take to create a new Mac's account.
const accountWithin = 30 * time.Second

// Errors that callers may want to distinguish.
var (
	// ErrAlive means that the Mac is joined and renewed its Lease recently.
	ErrAlive = errors.New("is already joined and alive; a new join token would let another machine take its place")
	// errNoAccount means that the Mac's account was not created.
	errNoAccount = errors.New("the operator has not created its account; check that the operator is running")
)

// Options name the Mac, and how it reaches the API server.
type Options struct {
	// Mac is the name of the MacNode.
	Mac string
	// Labels of the MacNode, if it is created.
	Labels map[string]string
	// Namespace of the operator.
	Namespace string
	// Server is the https URL of the API server for the Mac, and CA the certificates, in
	// PEM, that authenticate it; empty: the Mac's own roots.
	Server string
	CA     []byte
	// Life is the validity of the token; 0 means DefaultLife.
	Life time.Duration
	// Again permits a token for a Mac that is joined and alive.
	Again bool
}

// Endpoint returns the URL and CA of the API server in a client configuration. Its errors
// explain what a Mac could not verify.
func Endpoint(config *rest.Config) (server string, ca []byte, err error) {
	u, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return "", nil, fmt.Errorf("address of the API server: %w", err)
	}
	if u.Scheme != "https" || config.Insecure {
		return "", nil, fmt.Errorf("the kubeconfig does not verify the certificate of the API server %s, but a Mac must verify it; add certificate-authority-data to the kubeconfig", u)
	}
	if config.ServerName != "" {
		return "", nil, fmt.Errorf("the kubeconfig's tls-server-name renames the API server %s to %s, which a Mac cannot do; use an address that is in the certificate of the API server", u, config.ServerName)
	}
	ca = config.CAData
	if len(ca) == 0 && config.CAFile != "" {
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return "", nil, fmt.Errorf("CA of the API server: %w", err)
		}
	}
	return strings.TrimSuffix(u.String(), "/"), ca, nil
}

// Mint creates a token for one Mac and invalidates earlier ones. It returns when the token
// expires.
func Mint(ctx context.Context, c client.Client, o Options) (token string, expires time.Time, err error) {
	if o.Life == 0 {
		o.Life = DefaultLife
	}
	if err := join.CheckMac(o.Mac); err != nil {
		return "", time.Time{}, err
	}
	if o.Life < Shortest || o.Life > Longest {
		return "", time.Time{}, fmt.Errorf("a join token can be valid for %s to %s, not for %s", Shortest, Longest, o.Life)
	}
	// Check that the token can be encoded before anything is created.
	t := join.Token{Server: o.Server, CA: o.CA, Namespace: o.Namespace, Mac: o.Mac, Credential: "none", Expires: time.Now().Add(o.Life)}
	if _, err := t.Encode(); err != nil {
		return "", time.Time{}, err
	}
	if err := ensureMac(ctx, c, o); err != nil {
		return "", time.Time{}, err
	}
	anchor, err := newAnchor(ctx, c, o)
	if err != nil {
		return "", time.Time{}, err
	}
	id := ""
	if t.Credential, id, t.Expires, err = request(ctx, c, anchor, o.Life); err == nil {
		anchor.Data = map[string][]byte{join.KeyCredential: []byte(id), join.KeyExpires: []byte(t.Expires.UTC().Format(time.RFC3339))}
		err = complete(ctx, c, anchor)
	}
	if err != nil {
		return "", time.Time{}, errors.Join(err, client.IgnoreNotFound(c.Delete(context.WithoutCancel(ctx), anchor)))
	}
	token, err = t.Encode()
	return token, t.Expires, err
}

func ensureMac(ctx context.Context, c client.Client, o Options) error {
	mac := &v1alpha1.MacNode{}
	err := c.Get(ctx, client.ObjectKey{Name: o.Mac}, mac)
	switch {
	case apierrors.IsNotFound(err):
		mac = &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: o.Mac, Labels: o.Labels}}
		err = c.Create(ctx, mac)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create MacNode %s: %w", o.Mac, err)
		}
	case err != nil:
		return fmt.Errorf("read MacNode %s: %w", o.Mac, err)
	case !mac.DeletionTimestamp.IsZero():
		return fmt.Errorf("MacNode %s is being deleted; wait until the deletion has finished", o.Mac)
	case !o.Again && meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionReady):
		return fmt.Errorf("%s %w", o.Mac, ErrAlive)
	}
	return nil
}

// newAnchor creates the Secret that the token is bound to. There is one per Mac: deleting
// the old one invalidates the tokens that were bound to it.
func newAnchor(ctx context.Context, c client.Client, o Options) (*corev1.Secret, error) {
	anchor := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: join.Account(o.Mac), Labels: map[string]string{v1alpha1.LabelMac: o.Mac}},
		Type:       corev1.SecretTypeOpaque,
	}
	if err := c.Delete(ctx, anchor.DeepCopy()); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("revoke the previous join token of Mac %s: %w", o.Mac, err)
	}
	if err := c.Create(ctx, anchor); err != nil {
		return nil, fmt.Errorf("create Secret %s: %w", anchor.Name, err)
	}
	return anchor, nil
}

// request requests a token that is bound to a Secret, for the account of the same name, and
// returns it with its id.
func request(ctx context.Context, c client.Client, anchor *corev1.Secret, life time.Duration) (token, id string, expires time.Time, err error) {
	seconds := int64(life / time.Second)
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: anchor.Name, UID: anchor.UID},
	}}
	if err := whenThereIsAnAccount(ctx, c, anchor, r); err != nil {
		return "", "", time.Time{}, err
	}
	id, err = credentialID(r.Status.Token)
	return r.Status.Token, id, r.Status.ExpirationTimestamp.Time, err
}

// complete writes what the operator compares requests with.
func complete(ctx context.Context, c client.Client, anchor *corev1.Secret) error {
	if err := c.Update(ctx, anchor); err != nil {
		return fmt.Errorf("write Secret %s: %w", anchor.Name, err)
	}
	return nil
}

// whenThereIsAnAccount waits for the operator, which creates the account of a new Mac or
// enrolment within moments.
func whenThereIsAnAccount(ctx context.Context, c client.Client, anchor *corev1.Secret, r *authenticationv1.TokenRequest) error {
	limited, cancel := context.WithTimeout(ctx, accountWithin)
	defer cancel()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: anchor.Namespace, Name: anchor.Name}}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.SubResource("token").Create(limited, account, r)
		if !apierrors.IsNotFound(err) {
			if err != nil {
				return fmt.Errorf("token of account %s: %w", account.Name, err)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limited.Done():
			return fmt.Errorf("the Secret %s exists, but after %s %w; see `kubectl -n %s get deployment metalfleet-operator`", anchor.Name, accountWithin, errNoAccount, anchor.Namespace)
		case <-tick.C:
		}
	}
}

// credentialID returns the id under which the API server reports uses of the token.
func credentialID(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("the API server's token is not a JSON Web Token; Kubernetes 1.32 or newer is required")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", fmt.Errorf("read the API server's token: %w", err)
	}
	var claims struct {
		ID string `json:"jti"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil || claims.ID == "" {
		return "", errors.New("the API server's token has no id; Kubernetes 1.32 or newer is required")
	}
	return "JTI=" + claims.ID, nil
}

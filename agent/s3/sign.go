package s3

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Keys are a user's access key. Empty ones are none, for buckets that everybody
// may read. They print as no more than whether there are any.
type Keys struct{ id, secret, session string }

// keysPrefix begins the keys in a Mac's Secret, so that nothing else is taken
// for them and they for nothing else.
const keysPrefix = v1alpha1.CredentialS3

// ReadKeys parses the Mac's Secret: ID:SECRET after the prefix, followed by
// :SESSION for a temporary key.
func ReadKeys(b download.Bearer) (Keys, error) {
	if b == "" {
		return Keys{}, nil
	}
	rest, ok := strings.CutPrefix(string(b), keysPrefix)
	parts := strings.Split(rest, ":")
	for i := range parts {
		plain, err := url.QueryUnescape(parts[i])
		parts[i], ok = plain, ok && err == nil && plain != ""
	}
	if !ok || len(parts) < 2 || len(parts) > 3 {
		return Keys{}, &download.Error{Reason: v1alpha1.ReasonTokenRefused, Message: "the Secret of model.secretRef contains no access key; put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into it"}
	}
	k := Keys{id: parts[0], secret: parts[1]}
	if len(parts) == 3 {
		k.session = parts[2]
	}
	return k, nil
}

// none reports whether requests are not signed.
func (k Keys) none() bool { return k == Keys{} }

// String hides the keys from every log and error.
func (k Keys) String() string {
	if k.none() {
		return "no keys"
	}
	return "keys"
}

// GoString hides them too.
func (k Keys) GoString() string { return k.String() }

// emptySum is the SHA-256 of nothing, which is what our requests carry.
const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Sign returns the header with the signature of a request (AWS Signature Version
// 4), which is good for this one address and for some minutes. The secret itself
// does not leave this Mac.
func (k Keys) Sign(method, address, region string, header http.Header) (http.Header, error) {
	out := header.Clone()
	if out == nil {
		out = http.Header{}
	}
	if k.none() {
		return out, nil
	}
	req, err := http.NewRequest(method, address, nil)
	if err != nil {
		return nil, fail("the source is not a valid URL; write s3://BUCKET/PREFIX")
	}
	for name, v := range header {
		if strings.HasPrefix(name, "X-Amz-") {
			req.Header[name] = v
		}
	}
	req.Header.Set("X-Amz-Content-Sha256", emptySum)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	keys := aws.Credentials{AccessKeyID: k.id, SecretAccessKey: k.secret, SessionToken: k.session}
	if err := signer.SignHTTP(context.Background(), keys, req, emptySum, "s3", region, time.Now()); err != nil {
		return nil, &download.Error{Reason: v1alpha1.ReasonDownloadFailed, Message: "cannot sign the request", Err: err}
	}
	for name, v := range req.Header {
		out[name] = v
	}
	return out, nil
}

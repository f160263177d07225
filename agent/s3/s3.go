// Package s3 reads models from buckets of Amazon S3 and compatible servers: it
// lists the objects with a prefix, finds the SHA-256 of its files, and signs the
// requests for them.
//
// It owns the syntax of s3:// sources, the listing (paged, bounded), the sources
// of digests, and the meaning of S3's error codes for a user. A user's keys never
// leave this Mac: they sign requests to the source's own endpoint. It refuses
// weights without a known SHA-256, because a later download could not be
// verified: an ETag is no digest of the content. It only fetches listings and
// digests: package inspect reads headers, and package store the files.
//
// Start reading at Client.List, then Client.Digests.
package s3

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds of one listing.
const (
	maxPages   = 20
	maxEntries = 20_000
	maxPage    = 8 << 20
	maxSums    = 1 << 20
)

// SumsFile is the file next to a model with the SHA-256 of its files, in the
// format of sha256sum.
const SumsFile = "SHA256SUMS"

// Client asks for what buckets hold.
type Client struct{ Client *download.Client }

// page is one answer to ListObjectsV2.
type page struct {
	XMLName     xml.Name `xml:"ListBucketResult"`
	IsTruncated bool     `xml:"IsTruncated"`
	Next        string   `xml:"NextContinuationToken"`
	Contents    []struct {
		Key  string `xml:"Key"`
		Size int64  `xml:"Size"`
	} `xml:"Contents"`
}

// List returns the objects with the source's prefix; paths are relative to it.
// Every error except the context's own is a *download.Error.
func (c *Client) List(ctx context.Context, s Source, keys Keys) ([]hub.Entry, error) {
	below := s.Prefix
	if below != "" && !s.isFile() {
		below += "/"
	}
	var out []hub.Entry
	next := ""
	for n := 0; ; n++ {
		if n == maxPages || len(out) > maxEntries {
			return nil, fail("%s contains more than %d files; use the model's own folder", s, maxEntries)
		}
		p, err := c.page(ctx, s, below, next, keys)
		if err != nil {
			return nil, err
		}
		for _, o := range p.Contents {
			name := strings.TrimPrefix(o.Key, below)
			if s.isFile() {
				name = o.Key[strings.LastIndexByte(o.Key, '/')+1:]
			}
			switch {
			case !strings.HasPrefix(o.Key, below) || o.Size < 0:
				return nil, strange(s, "lists a file that was not requested")
			case s.isFile() && o.Key != s.Prefix, strings.HasSuffix(o.Key, "/"): // another one's; a folder's mark
			case !hub.CleanPath(name):
				return nil, fail("%s contains a file whose name %.64q cannot be stored; use the model's own folder", s, name)
			default:
				out = append(out, hub.Entry{Path: name, Bytes: o.Size})
			}
		}
		if next = p.Next; !p.IsTruncated {
			return out, nil
		}
		if next == "" {
			return nil, strange(s, "returned a truncated listing without a continuation token")
		}
	}
}

func (c *Client) page(ctx context.Context, s Source, below, next string, keys Keys) (page, error) {
	q := url.Values{"list-type": {"2"}, "prefix": {below}}
	if next != "" {
		q.Set("continuation-token", next)
	}
	u := s.at("")
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	raw, err := c.read(ctx, s, u.String(), keys, maxPage)
	if err != nil {
		return page{}, err
	}
	var p page
	if !plain(raw) || xml.Unmarshal(raw, &p) != nil {
		return page{}, strange(s, "does not implement the S3 API")
	}
	return p, nil
}

// read fetches a small answer whole.
func (c *Client) read(ctx context.Context, s Source, address string, keys Keys, most int64) ([]byte, error) {
	header, err := keys.Sign(http.MethodGet, address, s.Region, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Client.Get(ctx, address, header)
	if err != nil {
		return nil, Explain(err, s, keys)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err == nil && int64(len(raw)) > most {
		err = strange(s, fmt.Sprintf("sent more than %d MiB", most>>20))
	}
	return raw, err
}

// File asks for one of the model's files.
func (c *Client) File(ctx context.Context, s Source, file string, keys Keys, header http.Header) (*http.Response, error) {
	address := s.URL(file)
	header, err := keys.Sign(http.MethodGet, address, s.Region, header)
	if err != nil {
		return nil, err
	}
	resp, err := c.Client.Get(ctx, address, header)
	if err != nil {
		return nil, Explain(err, s, keys)
	}
	return resp, nil
}

// Digests adds the SHA-256 of the weights among the chosen files: from SumsFile
// next to them, from the server if they were uploaded with --checksum-algorithm
// SHA256, or from the metadata sha256. all are the files in the listing. Small
// files may have none: they are read as a whole.
func (c *Client) Digests(ctx context.Context, s Source, chosen, all []hub.Entry, keys Keys) error {
	sums, err := c.sums(ctx, s, all, keys)
	if err != nil {
		return err
	}
	for i := range chosen {
		e := &chosen[i]
		if e.SHA256 = sums[e.Path]; e.SHA256 != "" || !isWeights(e.Path) {
			continue
		}
		if e.SHA256, err = c.kept(ctx, s, e.Path, keys); err != nil {
			return err
		}
		if e.SHA256 == "" {
			return &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: fmt.Sprintf(
				"the server has no SHA-256 of %s, so the download could not be verified: put the output of `sha256sum *` next to it as %s, or upload it in one part with --checksum-algorithm SHA256", e.Path, SumsFile)}
		}
	}
	return nil
}

func isWeights(p string) bool {
	return strings.HasSuffix(p, ".gguf") || strings.HasSuffix(p, ".safetensors")
}

// sums reads SumsFile, where there is one.
func (c *Client) sums(ctx context.Context, s Source, all []hub.Entry, keys Keys) (map[string]string, error) {
	for _, e := range all {
		if e.Path == SumsFile {
			raw, err := c.read(ctx, s, s.URL(SumsFile), keys, maxSums)
			if err != nil {
				return nil, err
			}
			return parseSums(string(raw))
		}
	}
	return nil, nil
}

var sumLine = regexp.MustCompile(`^([0-9a-f]{64}) [ *](?:\./)?(.+)$`)

// parseSums reads lines as sha256sum writes them.
func parseSums(text string) (map[string]string, error) {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			continue
		}
		m := sumLine.FindStringSubmatch(line)
		if m == nil {
			return nil, &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: fmt.Sprintf("%s contains the line %.80q, which is not in the format of sha256sum; write the file again", SumsFile, line)}
		}
		out[m[2]] = m[1]
	}
	return out, nil
}

// kept is the SHA-256 that the server keeps of a whole file, or "". Of an upload
// in several parts it keeps a digest of digests, which ends in their number.
func (c *Client) kept(ctx context.Context, s Source, file string, keys Keys) (string, error) {
	address := s.URL(file)
	header, err := keys.Sign(http.MethodHead, address, s.Region, http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}})
	if err != nil {
		return "", err
	}
	answer, err := c.Client.Head(ctx, address, header)
	if err != nil {
		return "", Explain(err, s, keys)
	}
	if raw, err := base64.StdEncoding.DecodeString(answer.Get("X-Amz-Checksum-Sha256")); err == nil && len(raw) == 32 && answer.Get("X-Amz-Checksum-Type") != "COMPOSITE" {
		return hex.EncodeToString(raw), nil
	}
	if sum := strings.ToLower(answer.Get("X-Amz-Meta-Sha256")); hexSum.MatchString(sum) {
		return sum, nil
	}
	return "", nil
}

var hexSum = regexp.MustCompile(`^[0-9a-f]{64}$`)

// String names the bucket and the prefix.
func (s Source) String() string { return Scheme + s.Bucket + "/" + s.Prefix }

func strange(s Source, how string) *download.Error {
	return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable,
		Message: fmt.Sprintf("the server that answers for %s at %s %s; check the endpoint of the source", s, s.endpoint.Hostname(), how)}
}

// Explain explains an S3 error to the user, who sent keys or none.
func Explain(err error, s Source, keys Keys) error {
	var e *download.Error
	if !errors.As(err, &e) || e.Status == 0 {
		return err
	}
	no := func(reason, format string, args ...any) error {
		return &download.Error{Reason: reason, Message: fmt.Sprintf(format, args...), Code: e.Code, Status: e.Status}
	}
	switch {
	case e.Code == "NoSuchBucket":
		return no(v1alpha1.ReasonSourceNotFound, "bucket %s does not exist at %s; check the name, and the endpoint and region of the source", s.Bucket, s.endpoint.Hostname())
	case e.Code == "InvalidAccessKeyId", e.Code == "SignatureDoesNotMatch", e.Code == "InvalidToken", e.Code == "ExpiredToken":
		return no(v1alpha1.ReasonTokenRefused, "the server rejected the keys of model.secretRef (%s): they are wrong, expired or revoked; put valid ones into the Secret", e.Code)
	case e.Code == "RequestTimeTooSkewed":
		return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Code: e.Code, Status: e.Status,
			Message: "the server rejects this Mac's signatures because its clock is wrong; correct it (System Settings, Date & Time); retrying"}
	case e.Code == "PermanentRedirect", e.Code == "AuthorizationHeaderMalformed", e.Status == http.StatusMovedPermanently:
		return no(v1alpha1.ReasonSourceForbidden, "bucket %s is not in region %s; append its region to the source: ?region=REGION", s.Bucket, s.Region)
	case download.Denied(err) && keys.none():
		return no(v1alpha1.ReasonTokenRefused, "%s is not public; reference a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in model.secretRef", s)
	case download.Denied(err):
		return no(v1alpha1.ReasonTokenRefused, "the keys of model.secretRef may not read %s; grant them s3:ListBucket on the bucket and s3:GetObject on its files, or put others into the Secret", s)
	}
	return err
}

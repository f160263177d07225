// Package s3test is a server of buckets for tests: listings in pages, files with
// ranges, digests of uploads, and error codes, as Amazon S3 gives them, by path
// or by the host's name.
//
// It owns no data: buckets are given to it. It refuses a request whose signature
// (AWS Signature Version 4) is not that of its own view of the request, as S3
// does, and one without where a bucket is private.
//
// Start reading at Server.ServeHTTP.
package s3test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Object is one file. Whole is true if it was uploaded in one part with its
// SHA-256; Parts is the number of parts otherwise, for which the server keeps a
// digest of digests.
type Object struct {
	Content []byte
	Whole   bool
	Parts   int
	// Meta is its metadata sha256.
	Meta string
}

// Bucket is a set of objects by their keys. Without an access key it is public.
type Bucket struct {
	Objects map[string]Object
	Region  string
	ID, Secret, Session,
	// Denied keys are known and may read nothing.
	Denied string
}

// Server serves buckets.
type Server struct {
	// Host is what a bucket's name stands before, where it is not in the path.
	Host string
	// PageSize is how many objects a page lists; 0 means 1000.
	PageSize int
	// Now is the server's clock; nil means the system's.
	Now func() time.Time

	mu       sync.Mutex
	buckets  map[string]Bucket
	requests []string
}

// Put adds or replaces a bucket.
func (s *Server) Put(name string, b Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets == nil {
		s.buckets = map[string]Bucket{}
	}
	s.buckets[name] = b
}

// Requests that came so far: method, path, range.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if before, ok := strings.CutSuffix(r.Host, "."+s.Host); ok && s.Host != "" {
		name, key = before, strings.TrimPrefix(r.URL.Path, "/")
	}
	s.mu.Lock()
	b, known := s.buckets[name]
	s.requests = append(s.requests, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
	s.mu.Unlock()
	code, status := "", http.StatusForbidden
	switch {
	case !known:
		code, status = "NoSuchBucket", http.StatusNotFound
	case b.ID != "" && r.Header.Get("Authorization") == "":
		code = "AccessDenied"
	case r.Header.Get("Authorization") != "":
		code, status = s.judge(r, b)
	}
	if code == "" && key == "" && r.URL.Query().Get("list-type") == "2" {
		s.list(w, r, b)
		return
	}
	o, found := b.Objects[key]
	if code == "" && !found {
		code, status = "NoSuchKey", http.StatusNotFound
	}
	if code != "" {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
		return
	}
	serve(w, r, o)
}

func serve(w http.ResponseWriter, r *http.Request, o Object) {
	sum := sha256.Sum256(o.Content)
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sum[:16]))
	if o.Meta != "" {
		w.Header().Set("X-Amz-Meta-Sha256", o.Meta)
	}
	if r.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" && r.Header.Get("Range") == "" {
		switch value := base64.StdEncoding.EncodeToString(sum[:]); {
		case o.Whole:
			w.Header().Set("X-Amz-Checksum-Sha256", value)
			w.Header().Set("X-Amz-Checksum-Type", "FULL_OBJECT")
		case o.Parts > 0:
			w.Header().Set("X-Amz-Checksum-Sha256", fmt.Sprintf("%s-%d", value, o.Parts))
			w.Header().Set("X-Amz-Checksum-Type", "COMPOSITE")
		}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(o.Content))
}

// judge signs the request as this server sees it, and compares.
func (s *Server) judge(r *http.Request, b Bucket) (string, int) {
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	now := time.Now()
	if s.Now != nil {
		now = s.Now()
	}
	authorization := r.Header.Get("Authorization")
	_, scope, _ := strings.Cut(authorization, "Credential=")
	parts := strings.Split(strings.SplitN(scope, ",", 2)[0], "/")
	switch {
	case err != nil || len(parts) != 5:
		return "AuthorizationHeaderMalformed", http.StatusBadRequest
	case now.Sub(at).Abs() > 15*time.Minute:
		return "RequestTimeTooSkewed", http.StatusForbidden
	case parts[2] != b.Region:
		return "AuthorizationHeaderMalformed", http.StatusBadRequest
	case parts[0] == b.Denied && b.Denied != "":
		return "AccessDenied", http.StatusForbidden
	case parts[0] != b.ID:
		return "InvalidAccessKeyId", http.StatusForbidden
	}
	_, list, _ := strings.Cut(authorization, "SignedHeaders=")
	own := &http.Request{Method: r.Method, URL: r.URL, Host: r.Host, Header: http.Header{}}
	u := *r.URL
	u.Scheme, u.Host = "https", r.Host
	own.URL = &u
	for name := range strings.SplitSeq(strings.SplitN(list, ",", 2)[0], ";") {
		if v := r.Header.Get(name); v != "" {
			own.Header.Set(name, v)
		}
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	keys := aws.Credentials{AccessKeyID: b.ID, SecretAccessKey: b.Secret, SessionToken: b.Session}
	if err := signer.SignHTTP(context.Background(), keys, own, r.Header.Get("X-Amz-Content-Sha256"), "s3", b.Region, at); err != nil || own.Header.Get("Authorization") != authorization {
		return "SignatureDoesNotMatch", http.StatusForbidden
	}
	return "", 0
}

type content struct {
	Key  string
	Size int
}

type listing struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	Contents              []content
}

// list answers ListObjectsV2.
func (s *Server) list(w http.ResponseWriter, r *http.Request, b Bucket) {
	var keys []string
	for k := range b.Objects {
		if strings.HasPrefix(k, r.URL.Query().Get("prefix")) && k > r.URL.Query().Get("continuation-token") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	most := s.PageSize
	if most == 0 {
		most = 1000
	}
	out := listing{IsTruncated: len(keys) > most}
	if out.IsTruncated {
		keys = keys[:most]
		out.NextContinuationToken = keys[most-1]
	}
	for _, k := range keys {
		out.Contents = append(out.Contents, content{k, len(b.Objects[k].Content)})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(out)
}

package s3

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/s3/s3test"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const keysOfUser = "s3:AKIAEXAMPLE:wJalr%2FXU%3Atnzz"

func sum(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

// buckets is a server with one private bucket, a client that reaches it, and the
// query that names it.
func buckets(t *testing.T, b s3test.Bucket) (*s3test.Server, *Client, string) {
	t.Helper()
	stand := &s3test.Server{}
	b.Region = "eu-central-1"
	stand.Put("models", b)
	srv := httptest.NewTLSServer(stand)
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	c := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})
	t.Cleanup(c.Close)
	return stand, &Client{Client: c}, "?region=eu-central-1&endpoint=" + url.QueryEscape(srv.URL)
}

func parse(t *testing.T, source string) Source {
	t.Helper()
	s, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func keys(t *testing.T, text string) Keys {
	t.Helper()
	k, err := ReadKeys(download.Bearer(text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func private(objects map[string]s3test.Object) s3test.Bucket {
	return s3test.Bucket{Objects: objects, ID: "AKIAEXAMPLE", Secret: "wJalr/XU:tnzz"}
}

func TestAddressesOfSources(t *testing.T) {
	for source, want := range map[string]string{
		"s3://models/a/b":                       "https://models.s3.us-east-1.amazonaws.com/a/b/f.json",
		"s3://models":                           "https://models.s3.us-east-1.amazonaws.com/f.json",
		"s3://models/a/m.gguf?region=eu-west-2": "https://models.s3.eu-west-2.amazonaws.com/a/m.gguf",
		"s3://my.models/a":                      "https://s3.us-east-1.amazonaws.com/my.models/a/f.json",
		"s3://models/a?endpoint=https://minio.example:9000":                 "https://minio.example:9000/models/a/f.json",
		"s3://models/a?endpoint=https://o.example&use_path_style=false":     "https://models.o.example/a/f.json",
		"s3://models/a%20b+c?endpoint=https%3A%2F%2Fo.example&region=auto1": "https://o.example/models/a%20b%2Bc/f.json",
	} {
		if got := parse(t, source).URL("f.json"); got != want {
			t.Errorf("%s: files are fetched from %s, want %s", source, got, want)
		}
	}
}

func TestAttackSourcesThatCannotBeMeant(t *testing.T) {
	for _, source := range []string{
		"s3://", "s3://x", "s3://Models/a", "s3://a..b/c", "s3://models/../other", "s3://models/a/%2e%2e/b", "s3://models/a//b", "s3://models/a\\b",
		"s3://models/a#b", "s3://models/a?endpoint=http://minio.example", "s3://models/a?endpoint=https://user:pw@minio.example",
		"s3://models/a?endpoint=https://minio.example/path", "s3://models/a?endpoint=https://minio.example?x=1", "s3://models/a?region=a.b/c",
		"s3://models/a?region=a&region=b", "s3://models/a?use_path_style=maybe", "s3://models/a?accelerate=true", "s3://models/a?%zz", "https://models/a",
		"s3://models%2fother/a", "s3://user@models/a",
	} {
		if s, err := Parse(source); err == nil || download.Reason(err, "") != v1alpha1.ReasonSourceForbidden {
			t.Errorf("%s is taken for %+v (%v)", source, s, err)
		}
	}
}

func TestWhatLiesBelowAPrefixIsListed(t *testing.T) {
	objects := map[string]s3test.Object{"qwen/": {}, "qwen2/other.gguf": {Content: []byte("o")}, "top.txt": {Content: []byte("t")}}
	for i := range 7 {
		objects[fmt.Sprintf("qwen/f+%d &.json", i)] = s3test.Object{Content: make([]byte, i+1)}
	}
	stand, c, query := buckets(t, private(objects))
	stand.PageSize = 3
	got, err := c.List(t.Context(), parse(t, "s3://models/qwen"+query), keys(t, keysOfUser))
	if err != nil || len(got) != 7 || got[3] != (hub.Entry{Path: "f+3 &.json", Bytes: 4}) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = c.List(t.Context(), parse(t, "s3://models/qwen2/other.gguf"+query), keys(t, keysOfUser))
	if err != nil || len(got) != 1 || got[0] != (hub.Entry{Path: "other.gguf", Bytes: 1}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = c.List(t.Context(), parse(t, "s3://models/none"+query), keys(t, keysOfUser)); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	resp, err := c.File(t.Context(), parse(t, "s3://models/qwen"+query), "f+3 &.json", keys(t, keysOfUser), http.Header{"Range": {"bytes=1-2"}})
	if err != nil || resp.StatusCode != http.StatusPartialContent {
		t.Fatalf("%+v, %v", resp, err)
	}
	resp.Body.Close()
}

func TestDigestsComeFromWhereOneIsSaid(t *testing.T) {
	content := map[string][]byte{}
	for _, n := range []string{"sums", "whole", "meta", "parts", "none"} {
		content[n] = []byte("weights " + n)
	}
	objects := map[string]s3test.Object{
		"m/sums.safetensors":  {Content: content["sums"], Parts: 2},
		"m/whole.safetensors": {Content: content["whole"], Whole: true},
		"m/meta.safetensors":  {Content: content["meta"], Parts: 2, Meta: sum(content["meta"])},
		"m/parts.safetensors": {Content: content["parts"], Parts: 2},
		"m/none.safetensors":  {Content: content["none"]},
		"m/config.json":       {Content: []byte("{}")},
		"m/SHA256SUMS":        {Content: []byte(sum(content["sums"]) + "  sums.safetensors\n" + sum([]byte("x")) + " *./sub/x.bin\r\n\n")},
	}
	_, c, query := buckets(t, private(objects))
	src, k := parse(t, "s3://models/m"+query), keys(t, keysOfUser)
	all, err := c.List(t.Context(), src, k)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sums", "whole", "meta"} {
		chosen := []hub.Entry{{Path: name + ".safetensors"}, {Path: "config.json"}}
		if err := c.Digests(t.Context(), src, chosen, all, k); err != nil || chosen[0].SHA256 != sum(content[name]) || chosen[1].SHA256 != "" {
			t.Errorf("%s: %+v, %v", name, chosen, err)
		}
	}
	for _, name := range []string{"parts", "none"} {
		err := c.Digests(t.Context(), src, []hub.Entry{{Path: name + ".safetensors"}}, all, k)
		if download.Reason(err, "") != v1alpha1.ReasonInvalidModel || !strings.Contains(err.Error(), "sha256sum") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"abc  file", sum(nil) + " file", sum(nil) + "  ", strings.ToUpper(sum(nil)) + "  f"} {
		if got, err := parseSums(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

func TestWhatABucketRefusesIsExplained(t *testing.T) {
	b := private(map[string]s3test.Object{"m/config.json": {Content: []byte("{}")}})
	b.Session, b.Denied = "session/token==", "AKIADENIED"
	stand, c, query := buckets(t, b)
	right := keysOfUser + ":" + url.QueryEscape(b.Session)
	for name, test := range map[string]struct {
		source, keys, reason, says string
		skew                       time.Duration
	}{
		"right":            {source: "s3://models/m" + query, keys: right},
		"no keys":          {source: "s3://models/m" + query, keys: "", reason: v1alpha1.ReasonTokenRefused, says: "AWS_ACCESS_KEY_ID", skew: 0},
		"no session":       {source: "s3://models/m" + query, keys: keysOfUser, reason: v1alpha1.ReasonTokenRefused, says: "SignatureDoesNotMatch", skew: 0},
		"wrong secret":     {source: "s3://models/m" + query, keys: "s3:AKIAEXAMPLE:x", reason: v1alpha1.ReasonTokenRefused, says: "wrong, expired or revoked", skew: 0},
		"unknown id":       {source: "s3://models/m" + query, keys: "s3:AKIAOTHER:x", reason: v1alpha1.ReasonTokenRefused, says: "InvalidAccessKeyId", skew: 0},
		"no right":         {source: "s3://models/m" + query, keys: "s3:AKIADENIED:x", reason: v1alpha1.ReasonTokenRefused, says: "s3:GetObject", skew: 0},
		"no such bucket":   {source: "s3://other/m" + query, keys: right, reason: v1alpha1.ReasonSourceNotFound, says: "bucket other does not exist", skew: 0},
		"another region":   {source: "s3://models/m" + strings.Replace(query, "eu-central-1", "eu-west-1", 1), keys: right, reason: v1alpha1.ReasonSourceForbidden, says: "?region=REGION", skew: 0},
		"a clock is wrong": {source: "s3://models/m" + query, keys: right, reason: v1alpha1.ReasonSourceUnreachable, says: "its clock is wrong", skew: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			stand.Now = func() time.Time { return time.Now().Add(test.skew) }
			_, err := c.List(t.Context(), parse(t, test.source), keys(t, test.keys))
			if download.Reason(err, "") != test.reason || test.says != "" && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAttackWhatIsNoAccessKey(t *testing.T) {
	for _, text := range []string{"hf_token", "s3:", "s3:id", "s3::secret", "s3:id:", "s3:id:secret:", "s3:a:b:c:d", "s3:a:%zz", "x:a:b"} {
		if k, err := ReadKeys(download.Bearer(text)); err == nil || !k.none() {
			t.Errorf("%q is taken for an access key (%v)", text, err)
		}
	}
	k := keys(t, keysOfUser+":sess")
	for _, shown := range []string{fmt.Sprint(k), fmt.Sprintf("%+v %#v %s %q", k, k, k, k), fmt.Sprintf("%v", struct{ K Keys }{k})} {
		if strings.Contains(shown, "wJalr") || strings.Contains(shown, "AKIA") || strings.Contains(shown, "sess") {
			t.Errorf("it prints %s", shown)
		}
	}
	h, err := k.Sign(http.MethodGet, "https://models.s3.us-east-1.amazonaws.com/a", "us-east-1", http.Header{"Range": {"bytes=0-1"}})
	if err != nil || h.Get("Range") == "" || h.Get("Authorization") == "" || h.Get("X-Amz-Security-Token") != "sess" {
		t.Errorf("%v, %v", h, err)
	}
	for name, v := range h {
		if strings.Contains(strings.Join(v, ""), "wJalr") {
			t.Errorf("%s says the secret", name)
		}
	}
	if h, err := (Keys{}).Sign(http.MethodGet, "https://x/", "us-east-1", nil); err != nil || len(h) != 0 {
		t.Errorf("without keys a request is signed: %v, %v", h, err)
	}
}

// TestAttackAListingThatIsNone: an answer that S3 would not give stores nothing.
func TestAttackAListingThatIsNone(t *testing.T) {
	for name, answer := range map[string]string{
		"no XML":                   "{}",
		"another document":         "<Error><Code>x</Code></Error>",
		"a tag without a name":     "<>",
		"a file of another prefix": `<ListBucketResult><Contents><Key>other/x</Key><Size>1</Size></Contents></ListBucketResult>`,
		"a path that leads":        `<ListBucketResult><Contents><Key>m/../x</Key><Size>1</Size></Contents></ListBucketResult>`,
		"a negative size":          `<ListBucketResult><Contents><Key>m/x</Key><Size>-1</Size></Contents></ListBucketResult>`,
		"more, and not what":       `<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>`,
		"more for ever":            `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></ListBucketResult>`,
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { n++; fmt.Fprint(w, answer) }))
			defer srv.Close()
			pool := x509.NewCertPool()
			pool.AddCert(srv.Certificate())
			c := &Client{Client: download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})}
			defer c.Client.Close()
			got, err := c.List(t.Context(), parse(t, "s3://models/m?endpoint="+srv.URL), Keys{})
			if err == nil || len(got) > 0 || n > maxPages {
				t.Errorf("%v, %v after %d requests", got, err, n)
			}
		})
	}
}

// TestAttackAListingThatCostsMuch: 8 MiB of it would take hundreds of MiB.
func TestAttackAListingThatCostsMuch(t *testing.T) {
	fill := func(before, each, after string) string {
		return before + strings.Repeat(each, (maxPage-len(before)-len(after))/len(each)) + after
	}
	for name, answer := range map[string]string{
		"attributes":                 fill("<ListBucketResult ", `a="" `, "></ListBucketResult>"),
		"attributes after a quote":   fill(`<ListBucketResult x='>' `, `a="" `, "></ListBucketResult>"),
		"attributes of an inner tag": fill("<ListBucketResult><Contents ", `a="" `, "></Contents></ListBucketResult>"),
		"files":                      fill("<ListBucketResult>", "<Contents/>", "</ListBucketResult>"),
		"levels":                     fill("<ListBucketResult>", "<a>", ""),
		"levels in a comment":        fill("<ListBucketResult><!-- <a/> -->", "<a>", ""),
		"levels between comments":    fill("<ListBucketResult>", `<!--'-->`+strings.Repeat("<a>", 1300)+`<!--'-->`, ""),
		"levels after instructions":  fill("<ListBucketResult>", `<?a '?>`+strings.Repeat("<a>", 1300)+`<?a '?>`, ""),
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
			defer srv.Close()
			pool := x509.NewCertPool()
			pool.AddCert(srv.Certificate())
			c := &Client{Client: download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})}
			defer c.Client.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := c.List(t.Context(), parse(t, "s3://models/m?endpoint="+srv.URL), Keys{})
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 80<<20 {
				t.Errorf("%v, with %d MiB of memory", err, took>>20)
			}
		})
	}
}

// TestAListingOfManyFilesIsRead, with what servers put into each entry.
func TestAListingOfManyFilesIsRead(t *testing.T) {
	entry := `<Contents><Key>m/%05d.bin</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&#34;d41d8&#34;</ETag><Size>1</Size>` +
		`<Owner><ID>a</ID><DisplayName>a > "b"</DisplayName></Owner><StorageClass>STANDARD</StorageClass><ChecksumAlgorithm/></Contents>`
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>m</Name><KeyCount>1</KeyCount>`)
	for i := range 20_000 {
		fmt.Fprintf(&b, entry, i)
	}
	b.WriteString("<IsTruncated>false</IsTruncated></ListBucketResult>")
	var p page
	if raw := []byte(b.String()); !plain(raw) || xml.Unmarshal(raw, &p) != nil || len(p.Contents) != 20_000 {
		t.Errorf("it is plain: %v, with %d files", plain(raw), len(p.Contents))
	}
}

func TestRequestsOfSignedSourcesAreCounted(t *testing.T) {
	stand, c, query := buckets(t, private(map[string]s3test.Object{"m/a.gguf": {Content: []byte("a"), Whole: true}}))
	src, k := parse(t, "s3://models/m"+query), keys(t, keysOfUser)
	all, err := c.List(t.Context(), src, k)
	if err != nil || c.Digests(t.Context(), src, all, all, k) != nil {
		t.Fatal(err)
	}
	if got := stand.Requests(); !slices.Equal(got, []string{"GET /models/", "HEAD /models/m/a.gguf"}) {
		t.Errorf("%q", got)
	}
}

package programs

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"jpintel/store/storetest"
	"jpintel/webhook"
)

// ndjson is n programs of the size that the portal's details have.
func ndjson(n, round int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"unified_id":"UNI-bench%06d","primary_name":"省エネ設備更新補助金 第%d回","prefectures":["奈良県","大阪府"],`+
			`"amount_max_man_yen":%d,"source_url":"https://example.jp/subsidy/%d","application_window":{"start":"2026-04-01","end":"2026-06-30T08:00Z"},`+
			`"target_types":["sme","npo"],"use_purpose":"設備整備・IT導入をしたい / 新たな事業を行いたい","industry":"製造業 / 情報通信業 / 卸売業、小売業",`+
			`"subsidy_rate":"1/2","institution_name":"中小企業の設備投資促進事業"}`+"\n", i, round, i%1000, i)
	}
	return b.Bytes()
}

// BenchmarkImport imports programs that are new, that differ in one field, and
// that are unchanged. One operation is one record.
func BenchmarkImport(b *testing.B) {
	for _, kind := range []string{"created", "updated", "unchanged"} {
		b.Run(kind, func(b *testing.B) {
			db := storetest.New(b)
			s := &Service{DB: db, Outbox: webhook.NewOutbox()}
			first, second := ndjson(b.N, 1), ndjson(b.N, 1)
			if kind == "updated" {
				second = ndjson(b.N, 2)
			}
			if kind != "created" {
				if _, err := s.Import(context.Background(), bytes.NewReader(first), ImportOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			got, err := s.Import(context.Background(), bytes.NewReader(second), ImportOptions{})
			if err != nil || got.Read != b.N || got.Rejected != 0 {
				b.Fatal(got, err)
			}
		})
	}
}

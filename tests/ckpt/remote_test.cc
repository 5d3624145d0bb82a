// Addresses, signatures, settings and replies of object stores; requests are in tests/remote.
#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <map>
#include <span>
#include <string>

#if __has_include(<curl/curl.h>)
#include <curl/curl.h>
#endif

#include <ckpt/error.h>
#include <ckpt/folder.h>

#include "remote/aws.h"
#include "remote/http_client.h"
#include "remote/s3_reply.h"
#include "remote/s3_writer.h"
#include "remote/url_text.h"
#include "staging/store_staging.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

using namespace ckpt;
using test::contains;

namespace {

template <class Call>
Error refusal_of(const Call& call) {
  return test::error_of(call).value();
}

#if __has_include(<curl/curl.h>)
// As libcurl's headers have them.
constexpr int kNumbers[][2] = {{int(curl::WriteData), int(CURLOPT_WRITEDATA)},
                               {int(curl::Url), int(CURLOPT_URL)},
                               {int(curl::ReadData), int(CURLOPT_READDATA)},
                               {int(curl::ErrorText), int(CURLOPT_ERRORBUFFER)},
                               {int(curl::WriteFunction), int(CURLOPT_WRITEFUNCTION)},
                               {int(curl::ReadFunction), int(CURLOPT_READFUNCTION)},
                               {int(curl::Method), int(CURLOPT_CUSTOMREQUEST)},
                               {int(curl::SpeedBytesMin), int(CURLOPT_LOW_SPEED_LIMIT)},
                               {int(curl::SpeedSeconds), int(CURLOPT_LOW_SPEED_TIME)},
                               {int(curl::Headers), int(CURLOPT_HTTPHEADER)},
                               {int(curl::HeaderData), int(CURLOPT_HEADERDATA)},
                               {int(curl::Upload), int(CURLOPT_UPLOAD)},
                               {int(curl::FollowRedirects), int(CURLOPT_FOLLOWLOCATION)},
                               {int(curl::CaFile), int(CURLOPT_CAINFO)},
                               {int(curl::RedirectsMax), int(CURLOPT_MAXREDIRS)},
                               {int(curl::HeaderFunction), int(CURLOPT_HEADERFUNCTION)},
                               {int(curl::BufferBytes), int(CURLOPT_BUFFERSIZE)},
                               {int(curl::NoSignal), int(CURLOPT_NOSIGNAL)},
                               {int(curl::UploadBytes), int(CURLOPT_INFILESIZE_LARGE)},
                               {int(curl::ConnectMs), int(CURLOPT_CONNECTTIMEOUT_MS)},
                               {int(curl::PathAsIs), int(CURLOPT_PATH_AS_IS)},
                               {int(curl::ResponseCode), int(CURLINFO_RESPONSE_CODE)},
                               {int(curl::EffectiveUrl), int(CURLINFO_EFFECTIVE_URL)},
                               {int(curl::kHttp), int(CURLPROTO_HTTP)},
                               {int(curl::kHttps), int(CURLPROTO_HTTPS)},
                               {int(curl::Ok), int(CURLE_OK)},
                               {int(curl::UnsupportedProtocol), int(CURLE_UNSUPPORTED_PROTOCOL)},
                               {int(curl::MalformedUrl), int(CURLE_URL_MALFORMAT)},
                               {int(curl::UnknownProxy), int(CURLE_COULDNT_RESOLVE_PROXY)},
                               {int(curl::UnknownHost), int(CURLE_COULDNT_RESOLVE_HOST)},
                               {int(curl::NoConnection), int(CURLE_COULDNT_CONNECT)},
                               {int(curl::WriteRefused), int(CURLE_WRITE_ERROR)},
                               {int(curl::TooManyRedirects), int(CURLE_TOO_MANY_REDIRECTS)},
                               {int(curl::BadCertificate), int(CURLE_PEER_FAILED_VERIFICATION)},
                               {int(curl::BadCaFile), int(CURLE_SSL_CACERT_BADFILE)}};
static_assert(std::ranges::all_of(kNumbers, [](const auto& row) { return row[0] == row[1]; }));
static_assert(sizeof(curl_off_t) == sizeof(int64_t));
#endif

Variables variables_of(std::map<std::string, std::string> set) {
  return [set = std::move(set)](const char* name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string signature_of(const S3Request& request) {
  AwsSettings settings;
  settings.credentials.key_id = "AKIAIOSFODNN7EXAMPLE";
  settings.credentials.secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  const std::chrono::sys_days day = std::chrono::year(2013) / 5 / 24;
  const std::string last = signed_headers(request, settings, day).back();
  return last.substr(last.rfind('=') + 1);
}

std::string list_with(const std::string& inner) {
  return "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/\">" +
         inner + "</ListBucketResult>";
}

std::string object_with(const std::string& key, const std::string& size = "1") {
  return "<Contents><Key>" + key + "</Key><LastModified>2026-11-28T14:05:35.578Z</LastModified>" +
         "<ETag>&quot;a-2&quot;</ETag><Size>" + size + "</Size></Contents>";
}

struct RefusedText {
  std::string text, problem;
};
std::ostream& operator<<(std::ostream& out, const RefusedText& row) { return out << row.problem; }

const RefusedText kMalformedReplies[] = {
    {"", "an element is missing"},
    {"<", "it ends early"},
    {"<a>", "it ends early"},
    {"<a></b>", "elements overlap"},
    {"<a/><b/>", "text behind its end"},
    {"<!DOCTYPE x [<!ENTITY y 'z'>]><a/>", "not an element's name"},
    {"<a><!-- x --></a>", "not an element's name"},
    {"<a><![CDATA[x]]></a>", "not an element's name"},
    {"<a>&other;</a>", "an unknown entity"},
    {"<a>&#0;</a>", "an unknown entity"},
    {"<a>&#x80;</a>", "an unknown entity"},
    {"<a>&amp</a>", "an unknown entity"},
    {"<a/>", "not a listing"},
    {list_with("<a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a>"), "too many levels"},
    {list_with(object_with("")), "not a key"},
    {list_with(object_with("p/" + std::string(1023, 'k'))), "not a key"},
    {list_with(object_with("p/k", "-1")), "not a size"},
    {list_with(object_with("p/k", "18446744073709551616")), "not a size"},
    {list_with(object_with("q/k")), "a key outside of what was listed"},
    {list_with("<CommonPrefixes><Prefix>q/</Prefix></CommonPrefixes>"),
     "a key outside of what was listed"},
    {list_with("<Contents><Key>p/k</Key><Size>1</Size></Contents>"), "not an ETag"},
    {list_with("<IsTruncated>true</IsTruncated>"), "a page without the next one's token"},
    {list_with("<EncodingType>url</EncodingType>"), "its keys are encoded"},
};

std::string uploads_text(const std::string& key, const std::string& id) {
  return "<ListMultipartUploadsResult><Upload><Key>" + key + "</Key><UploadId>" + id +
         "</UploadId></Upload></ListMultipartUploadsResult>";
}

// The MD5 of the MD5s of "abc" and "abc".
constexpr const char* kEtagOfTwice = "\"043a916d6cfeecedf5e04f0312ba762d-2\"";

const RefusedText kRefusedAddresses[] = {
    {"s3://", "names no bucket"},
    {"s3:///key", "names no bucket"},
    {"https://user:secret@host/x", "a user's name or password"},
    {"s3://key:secret@bucket/x", "a user's name or password"},
    {"https://host/x?X-Amz-Signature=secret", "may hold a signature"},
    {"https://host/x#secret", "may hold a signature"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(remote)

// The examples of Amazon's "Authenticating Requests: Using the Authorization Header".
BOOST_AUTO_TEST_CASE(signatures_are_those_of_amazons_examples) {
  S3Request request;
  request.host = "examplebucket.s3.amazonaws.com";
  request.path = "/";
  request.query = {{"lifecycle", ""}};
  BOOST_TEST(signature_of(request) ==
             "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  request.query = {{"prefix", "J"}, {"max-keys", "2"}};  // sorted
  BOOST_TEST(signature_of(request) ==
             "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

BOOST_DATA_TEST_CASE(malformed_replies_are_refused,
                     boost::unit_test::data::make(kMalformedReplies)) {
  const Error error = refusal_of([&] { parse_object_list(sample.text, "p/"); });
  BOOST_TEST(int(error.code()) == int(ErrorCode::Corrupt));
  BOOST_TEST(contains(error.problem(), sample.problem), error.problem());
}

BOOST_AUTO_TEST_CASE(names_in_a_listing_are_data) {
  const ObjectList list = parse_object_list(
      list_with(object_with("p/a&amp;b &#x3c;%2f+\xc3\xa9&#13;", "18446744073709551615") +
                "<CommonPrefixes><Prefix>p/../</Prefix></CommonPrefixes>"
                "<IsTruncated>true</IsTruncated><NextContinuationToken>t&lt;1"
                "</NextContinuationToken>"),
      "p/");
  BOOST_TEST(list.objects.at(0).key == "p/a&b <%2f+\xc3\xa9\r");
  BOOST_TEST(list.objects.at(0).count_bytes == UINT64_MAX);
  BOOST_TEST(list.objects.at(0).etag == "\"a-2\"");
  BOOST_TEST(list.objects.at(0).modified_ns == 1795874735578000000);
  BOOST_TEST(list.prefixes.at(0) == "p/../");
  BOOST_TEST(list.next_token == "t<1");
}

BOOST_AUTO_TEST_CASE(what_is_being_sent_is_listed) {
  const UploadList uploads = parse_upload_list(
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>p/b"
      "</NextKeyMarker><NextUploadIdMarker>2</NextUploadIdMarker><Upload><Key>p/a</Key>"
      "<UploadId>1~&amp;</UploadId></Upload></ListMultipartUploadsResult>",
      "p/");
  BOOST_TEST(uploads.uploads.at(0).key == "p/a");
  BOOST_TEST(uploads.uploads.at(0).id == "1~&");
  BOOST_TEST(uploads.next_key + uploads.next_id == "p/b2");
  const PartList parts = parse_part_list(
      "<ListPartsResult><ChecksumAlgorithm>SHA256</ChecksumAlgorithm><IsTruncated>true"
      "</IsTruncated><NextPartNumberMarker>7</NextPartNumberMarker><Part><PartNumber>7"
      "</PartNumber><Size>3</Size><ETag>\"e\"</ETag><ChecksumSHA256>c=</ChecksumSHA256></Part>"
      "</ListPartsResult>");
  BOOST_TEST(parts.parts.at(0).first == 7);
  BOOST_TEST(parts.parts.at(0).second.count_bytes == 3);
  BOOST_TEST(parts.parts.at(0).second.sha256 == "c=");
  BOOST_TEST(parts.next_number == "7");
  BOOST_TEST(parts.has_checksums);
  BOOST_TEST(parse_answer("<r><UploadId>1</UploadId></r>", "r", "UploadId") == "1");
  for (const char* text :
       {"<a/>", "<ListPartsResult><Part><PartNumber>x</PartNumber></Part></ListPartsResult>",
        "<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>",
        "<ListPartsResult><Part><PartNumber>1</PartNumber><Size>1</Size></Part></"
        "ListPartsResult>"}) {
    BOOST_TEST(int(refusal_of([&] { parse_part_list(text); }).code()) == int(ErrorCode::Corrupt));
  }
  BOOST_TEST(contains(refusal_of([&] { parse_upload_list(uploads_text("q/a", "1"), "p/"); }).what(),
                      "a key outside"));
  BOOST_TEST(contains(refusal_of([&] { parse_upload_list(uploads_text("p/a", ""), "p/"); }).what(),
                      "not the name of an upload"));
  BOOST_TEST(contains(refusal_of([] { parse_answer("<r/>", "r", "UploadId"); }).what(),
                      "not the name of an upload"));
}

// A part is what was sent where the checksum that the store keeps of it says so.
BOOST_AUTO_TEST_CASE(a_part_is_told_by_its_checksum) {
  const std::string text = "abc";
  const auto bytes = std::as_bytes(std::span(text));
  const std::string md5 = "900150983cd24fb0d6963f7d28e17f72";
  const std::string sha = "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=";
  BOOST_TEST(S3Writer::is_same({3, "\"" + md5 + "\"", ""}, bytes));
  BOOST_TEST(S3Writer::is_same({3, "\"another\"", sha}, bytes));
  BOOST_TEST(!S3Writer::is_same({4, md5, sha}, bytes));
  BOOST_TEST(!S3Writer::is_same({3, "\"another\"", ""}, bytes));
  BOOST_TEST(!S3Writer::is_same({3, md5, "u" + sha}, bytes));
  const S3Writer::Parts parts = {{1, {3, md5, ""}}, {2, {3, md5, ""}}};
  BOOST_TEST(!S3Writer::may_be({"k", 6, "\"" + md5 + "-2\"", 0}, parts));
  BOOST_TEST(S3Writer::may_be({"k", 6, kEtagOfTwice, 0}, parts));
  BOOST_TEST(!S3Writer::may_be({"k", 7, kEtagOfTwice, 0}, parts));
}

BOOST_AUTO_TEST_CASE(no_object_has_more_parts_than_a_store_takes) {
  constexpr uint64_t kMiB = 1 << 20, kMost = S3Writer::kPartsMax;
  for (const auto& [file_bytes, part_mib] : {std::pair<uint64_t, uint64_t>{0, 8},
                                             {8 * kMiB * kMost - 1, 8},
                                             {8 * kMiB * kMost, 16},
                                             {64 * kMiB * kMost - 1, 64}}) {
    BOOST_TEST(StoreStaging::part_bytes_for(file_bytes) == part_mib * kMiB);
  }
  BOOST_TEST(int(refusal_of([&] { StoreStaging::part_bytes_for(64 * kMiB * kMost); }).code()) ==
             int(ErrorCode::Unsupported));
}

BOOST_AUTO_TEST_CASE(an_error_of_a_store_has_a_code) {
  BOOST_TEST(s3_error_code("<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>") ==
             "SlowDown");
  BOOST_TEST(s3_error_code("<html><body>no</body></html>") == "");
  BOOST_TEST(s3_error_code("no") == "");
}

BOOST_AUTO_TEST_CASE(times_are_read_or_left_out) {
  BOOST_TEST(iso_time_ns("1970-01-02T00:00:00Z").value() == 86400000000000);
  for (const char* text : {"", "1970-01-02", "1970-13-02T00:00:00Z", "9999-01-01T00:00:00Z",
                           "1970-01-02T00:00:00+01:00", "1970-01-02T00:00:00.x1Z"}) {
    BOOST_TEST(!iso_time_ns(text), text);
  }
}

BOOST_DATA_TEST_CASE(addresses_that_are_refused_show_no_secret,
                     boost::unit_test::data::make(kRefusedAddresses)) {
  const Error error = refusal_of([&] { parse_address(sample.text); });
  BOOST_TEST(contains(error.what(), sample.problem), error.what());
  BOOST_TEST(!contains(error.what(), "secret"));
}

BOOST_AUTO_TEST_CASE(an_address_is_a_path_that_folders_and_names_are_joined_to) {
  const Address address = parse_address(std::filesystem::path("s3://bucket/a b/") / "../x/./.y");
  BOOST_TEST(address.host == "bucket");
  BOOST_TEST(address.path == "x/.y");
  BOOST_TEST(parse_address("S3://b/../../x").path == "x");
  BOOST_TEST(percent_encoded("a b/\xc3\xa9~", "/") == "a%20b/%C3%A9~");
}

BOOST_AUTO_TEST_CASE(settings_come_from_the_environment_and_then_from_files) {
  const test::TemporaryFolder folder;
  test::write_file(folder / ".aws/credentials",
                   "# mine\n[default]\naws_access_key_id=ID\n"
                   "aws_secret_access_key = SE CRET\n[two]\n"
                   "aws_access_key_id = ID2\naws_secret_access_key = SECRET2\n"
                   "aws_session_token = TOKEN2\n");
  test::write_file(folder / ".aws/config",
                   "[profile two]\nregion = eu-west-3\ns3 =\n"
                   "  addressing_style = virtual\nendpoint_url = https://store/\n"
                   "[profile sso]\nsso_session = x\n");
  std::map<std::string, std::string> set = {{"HOME", folder.path().string()},
                                            {"AWS_PROFILE", "two"}};
  AwsSettings two = read_aws_settings(variables_of(set));
  BOOST_TEST(two.credentials.key_id == "ID2");
  BOOST_TEST(two.credentials.session_token == "TOKEN2");
  BOOST_TEST(two.region == "eu-west-3");
  BOOST_TEST(two.endpoint == "https://store");
  BOOST_TEST(two.has_bucket_in_host);
  set["AWS_ACCESS_KEY_ID"] = "ID3";
  set["AWS_REGION"] = "us-west-2";
  BOOST_TEST(contains(refusal_of([&] { read_aws_settings(variables_of(set)); }).what(),
                      "AWS_SECRET_ACCESS_KEY is not set"));
  set["AWS_SECRET_ACCESS_KEY"] = "SECRET3";
  two = read_aws_settings(variables_of(set));
  BOOST_TEST(two.credentials.key_id == "ID3");
  BOOST_TEST(two.credentials.session_token == "");
  BOOST_TEST(two.region == "us-west-2");

  const auto refused = [&](const char* profile) {
    return refusal_of([&] {
      read_aws_settings(variables_of({{"HOME", folder.path().string()}, {"AWS_PROFILE", profile}}));
    });
  };
  BOOST_TEST(contains(refused("default").what(), "have a space"));
  BOOST_TEST(!contains(refused("default").what(), "SE CRET"));
  BOOST_TEST(contains(refused("sso").what(), "single sign-on (sso_session)"));
  BOOST_TEST(contains(refused("three").what(), "AWS_PROFILE names 'three'"));
}

BOOST_AUTO_TEST_CASE(a_line_that_is_not_a_setting_is_named_by_its_number_alone) {
  const Error error = refusal_of([] { parse_profiles("[a]\nsecret\n", "file"); });
  BOOST_TEST(contains(error.what(), "line 2"));
  BOOST_TEST(!contains(error.what(), "secret"));
}

BOOST_AUTO_TEST_CASE(a_path_is_read_through_what_was_added_for_its_scheme) {
  BOOST_TEST(scheme_of("s3://b") == "s3");
  BOOST_TEST(scheme_of("c:/x") == "");
  BOOST_TEST(!has_source("added"));
  add_source("added", [] { return remote_folder([](const char*) { return std::nullopt; }); });
  BOOST_TEST(has_source("added"));
  BOOST_TEST(int(kind_at("added://")) == int(EntryKind::Absent));
}

BOOST_AUTO_TEST_SUITE_END()

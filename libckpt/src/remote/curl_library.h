// libcurl, opened when the first address is read: programs start without it, and are built without
// it. What is declared here is what its ABI fixes; tests compare it with its headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt::curl {

struct Handle;  // CURL
struct Texts {  // curl_slist
  char* text;
  Texts* next;
};

// Kinds of values: long, pointer, function, curl_off_t.
constexpr int kLong = 0, kPointer = 10000, kFunction = 20000, kOffset = 30000;

enum Option : int {
  WriteData = kPointer + 1,
  Url = kPointer + 2,
  ReadData = kPointer + 9,
  ErrorText = kPointer + 10,
  WriteFunction = kFunction + 11,
  ReadFunction = kFunction + 12,
  SpeedBytesMin = kLong + 19,
  SpeedSeconds = kLong + 20,
  Headers = kPointer + 23,
  HeaderData = kPointer + 29,
  Method = kPointer + 36,
  Upload = kLong + 46,
  FollowRedirects = kLong + 52,
  CaFile = kPointer + 65,
  RedirectsMax = kLong + 68,
  HeaderFunction = kFunction + 79,
  BufferBytes = kLong + 98,
  NoSignal = kLong + 99,
  UploadBytes = kOffset + 115,
  ConnectMs = kLong + 156,
  Protocols = kLong + 181,
  RedirectProtocols = kLong + 182,
  PathAsIs = kLong + 234,
};

enum Info : int { ResponseCode = 0x200000 + 2, EffectiveUrl = 0x100000 + 1 };

constexpr long kHttp = 1, kHttps = 2;  // of Protocols

enum Code : int {  // CURLcode
  Ok = 0,
  UnsupportedProtocol = 1,
  MalformedUrl = 3,
  UnknownProxy = 5,
  UnknownHost = 6,
  NoConnection = 7,
  WriteRefused = 23,
  TooManyRedirects = 47,
  BadCertificate = 60,
  BadCaFile = 77,
};

struct Library {
  int (*global_init)(long flags);
  Handle* (*make)();
  int (*set)(Handle*, Option, ...);
  int (*perform)(Handle*);
  int (*info)(Handle*, Info, ...);
  void (*reset)(Handle*);
  void (*free)(Handle*);
  Texts* (*append)(Texts*, const char*);
  void (*free_texts)(Texts*);
  const char* (*error_text)(int code);
};

// Throws Error(Unsupported) where this system has none.
const Library& library();

}  // namespace ckpt::curl

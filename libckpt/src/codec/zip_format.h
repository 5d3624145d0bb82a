#pragma once

#include <cstdint>

// Signatures, sizes and flags of zip records that the reader and the writer share.
namespace ckpt::zip {

inline constexpr uint32_t kLocalHeader = 0x04034b50;      // APPNOTE 4.3.7
inline constexpr uint32_t kDescriptor = 0x08074b50;       // 4.3.9
inline constexpr uint32_t kCentralHeader = 0x02014b50;    // 4.3.12
inline constexpr uint32_t kZip64End = 0x06064b50;         // 4.3.14
inline constexpr uint32_t kZip64EndLocator = 0x07064b50;  // 4.3.15
inline constexpr uint32_t kEnd = 0x06054b50;              // 4.3.16

inline constexpr uint64_t kLocalHeaderBytes = 30;
inline constexpr uint64_t kDescriptorBytes = 16;
inline constexpr uint64_t kZip64DescriptorBytes = 24;
inline constexpr uint64_t kCentralHeaderBytes = 46;
inline constexpr uint64_t kZip64EndBytes = 56;
inline constexpr uint64_t kZip64EndLocatorBytes = 20;
inline constexpr uint64_t kEndBytes = 22;

inline constexpr uint16_t kFlagDescriptor = 0x0008;  // sizes and CRC-32 follow the data
inline constexpr uint16_t kFlagUtf8 = 0x0800;
inline constexpr uint16_t kFlagsEncrypted = 0x2041;  // encrypted, strongly, or with a masked header

inline constexpr uint16_t kZip64Extra = 0x0001;    // 4.5.3
inline constexpr uint16_t kPaddingExtra = 0x4246;  // "FB", PyTorch's own

inline constexpr uint32_t kSeeZip64 = 0xFFFFFFFF;  // the number stands in a ZIP64 field
inline constexpr uint16_t kSeeZip64Count = 0xFFFF;

}  // namespace ckpt::zip
